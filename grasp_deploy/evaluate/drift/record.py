"""The record of `evaluate drift`, checked once when it is read."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from grasp_deploy.checkpoint.footprint import Footprint

Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class DriftModel(Struct):
    """A measured model."""

    name: str
    footprint: Footprint


class TextDrift(Struct):
    """One text: means per predicted token in nats, errors over its sequences (null for one)."""

    name: str
    source: str
    split: str | None
    calibrated_on: bool
    sequences: Count
    sequence_length: Count
    tokens: Count
    token_ids_sha256: str
    divergence: float  # KL(dense || pruned)
    divergence_error: float | None
    agreement: Share  # of the most likely token
    agreement_error: float | None
    dense_loss: float
    pruned_loss: float
    excess_loss: float
    excess_error: float | None


class Excess(Struct):
    """Over the texts that were not calibrated on, or over all where none is such."""

    mean: float
    mean_error: float | None
    worst: float
    worst_text: str
    texts: Count


class Flips(Struct):
    """Shares of a task's items whose answer only one of the two models has right."""

    task: str
    metric: str
    items: Count
    flips: Share
    flips_error: float | None
    right_to_wrong: Share
    wrong_to_right: Share


class Answers(Struct):
    """Greedy answers: mean tokens, one that never ended counted as `most_tokens`."""

    prompts: Count
    most_tokens: Count
    dense_length: float
    pruned_length: float
    change_error: float | None
    dense_unended: Share
    pruned_unended: Share


class DriftRecord(Struct):
    """The dense model and the pruned one, in this order, on the same texts, items and prompts."""

    models: Annotated[list[DriftModel], Meta(min_length=2, max_length=2)]
    settings: dict[str, Any]
    texts: Annotated[list[TextDrift], Meta(min_length=1)]
    excess: Excess
    tasks: list[Flips]
    answers: Answers | None
