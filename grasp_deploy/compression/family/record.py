"""The record of a family, from which its table and its figure are drawn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from grasp_deploy.checkpoint.footprint import RecordModel, footprint
from grasp_deploy.compression.result import Compressed
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.record import new_record
from grasp_deploy.report.losses import LossPoint

KIND = "family"
DENSE = "dense"
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Loss = Annotated[float, Meta(ge=0, le=1e3)]
Excess = Annotated[float, Meta(ge=-1e3, le=1e3)]


class Member(Struct):
    """What a member kept and lost; losses are null where no text was held out."""

    model: str
    keep: Annotated[float, Meta(gt=0, le=1)]
    output: str
    kept_cost: Amount
    budget: Amount
    heldout_loss: Loss | None  # nats per token
    excess: Excess | None  # above the dense model's
    excess_error: Loss | None  # standard error over the held-out sequences; null for one
    seconds: dict[str, float]  # by stage; the model's own text is written once for all


class FamilySettings(Struct):
    """What a figure says of the held-out text."""

    heldout_tokens: Annotated[int, Meta(ge=0, le=2**62)]


class FamilyRecord(Struct):
    """The dense model and its members, the largest first."""

    benchmark: str
    settings: FamilySettings
    models: Annotated[list[RecordModel], Meta(min_length=2)]
    dense_loss: Loss | None
    members: Annotated[list[Member], Meta(min_length=1)]

    def __post_init__(self) -> None:
        names = [DENSE, *(member.model for member in self.members)]
        if [model.name for model in self.models] != names:
            raise ValueError("its models are not the dense one and its members in their order")
        losses = [self.dense_loss, *(member.heldout_loss for member in self.members)]
        if None in losses and any(loss is not None for loss in losses):
            raise ValueError("some losses are null and others are not")

    @property
    def points(self) -> list[LossPoint]:
        """The models with their losses; none where no text was held out."""
        losses = [self.dense_loss, *(member.heldout_loss for member in self.members)]
        errors = [None, *(member.excess_error for member in self.members)]
        return [
            LossPoint(model.name, model.footprint, loss, error)
            for model, loss, error in zip(self.models, losses, errors, strict=True)
            if loss is not None
        ]

    @property
    def text(self) -> str:
        """The number of held-out tokens."""
        return f"{self.settings.heldout_tokens:,} held-out tokens"


def family_record(made: Sequence[Compressed], config: CompressConfig) -> dict[str, Any]:
    """The `FamilyRecord` of finished members, with header, as JSON has it."""
    first = made[0].plan.provenance
    calibration = first["calibration"]
    models = [(DENSE, made[0].dense), *((each.output.name, each.pruned) for each in made)]
    return new_record(
        KIND,
        ["grasp-deploy", *sys.argv[1:]],
        {
            "model": config.model,
            "cost_model": first["cost_model"],
            "calibration": list(config.calibration),
            "heldout_tokens": calibration["heldout_sequences"] * calibration["sequence_length"],
        },
        models=[{"name": name, "footprint": footprint(shape).as_dict()} for name, shape in models],
        dense_loss=first["losses"]["heldout_dense"],
        members=[_member(each) for each in made],
    )


def _member(made: Compressed) -> dict[str, Any]:
    provenance = made.plan.provenance
    return {
        "model": made.output.name,
        "keep": provenance["config"]["keep"],
        "output": str(made.output),
        "kept_cost": provenance["budget"]["kept_cost"],
        "budget": provenance["budget"]["limit"],
        "heldout_loss": provenance["losses"]["heldout_pruned"],
        "excess": provenance.get("excess"),
        "excess_error": provenance.get("excess_error"),
        "seconds": provenance["seconds"],
    }
