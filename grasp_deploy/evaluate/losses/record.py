"""The record of `evaluate perplexity`, checked once when it is read."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.data.overlap import NOTEWORTHY_SHARE
from grasp_deploy.report.losses.points import LossPoint
from grasp_deploy.stats.wording import listed

Loss = Annotated[float, Meta(ge=0, le=710)]  # beyond it there is no perplexity
Excess = Annotated[float, Meta(ge=-710, le=710)]


class LossModel(Struct):
    """A measured model."""

    name: str
    footprint: Footprint


class DocumentMean(Struct):
    """The perplexity where each document counts once, however long it is."""

    perplexity: Annotated[float, Meta(ge=1)]
    loss_nats_per_token: Loss
    standard_error: Loss | None


class LossCell(Struct):
    """One model's loss; `excess_nats` is what it lost against the first one, null for that."""

    model: str
    perplexity: Annotated[float, Meta(ge=1)]
    perplexity_interval: tuple[float, float] | None  # 95 %
    bits_per_byte: float | None
    loss_nats_per_token: Loss
    standard_error: Loss | None
    tokens: Annotated[int, Meta(ge=1)]
    tokens_counted: str
    bytes: int | None
    data: dict[str, Any]
    dtype: str
    seconds: float
    excess_nats: Excess | None
    excess_error: Loss | None  # paired over sequences or documents
    calibrated_on_share: float | None
    mean_over_documents: DocumentMean | None


class PerplexityRecord(Struct):
    """All models on the same tokens; the first one is the baseline."""

    benchmark: str
    settings: dict[str, Any]
    models: Annotated[list[LossModel], Meta(min_length=1)]
    cells: Annotated[list[LossCell], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if [cell.model for cell in self.cells] != [model.name for model in self.models]:
            raise ValueError("its cells are not one for each model, in their order")
        if len({cell.mean_over_documents is None for cell in self.cells}) > 1:
            raise ValueError("some cells have a mean_over_documents and others have none")

    @property
    def points(self) -> list[LossPoint]:
        """The models with their losses."""
        return [
            LossPoint(model.name, model.footprint, cell.loss_nats_per_token, cell.excess_error)
            for model, cell in zip(self.models, self.cells, strict=True)
        ]

    @property
    def text(self) -> str:
        """The number of tokens and their source, and whether a model was calibrated on it."""
        source = str(self.cells[0].data.get("source"))
        seen = ", calibrated on" if self.flattered else ""
        return f"{self.cells[0].tokens:,} tokens of {source.rpartition('/')[2]}{seen}"

    @property
    def flattered(self) -> str:
        """The models that were calibrated on the text, and its share; empty where none was."""
        shares = {cell.model: cell.calibrated_on_share or 0.0 for cell in self.cells}
        seen = {name: share for name, share in shares.items() if share >= NOTEWORTHY_SHARE}
        if not seen:
            return ""
        share = min(seen.values())
        part = "all" if share == 1 else f"at least {int(share * 100)} %"
        return f"{part} of this text was calibrated on: the perplexity flatters {listed(seen)}"
