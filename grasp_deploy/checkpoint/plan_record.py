"""Types of a plan's record, checked once where a plan is loaded.

A downloaded checkpoint may hold a damaged plan. Keys that are never read are left unchecked.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from grasp_deploy.pruning.layout import OUTPUT_PROJECTIONS, PRUNABLE_LINEARS

Count = Annotated[int, Meta(ge=0)]
Cost = Annotated[float, Meta(gt=0)]
LINEARS = tuple(linear.name for linear in PRUNABLE_LINEARS)  # what healing fits


class TextPart(Struct):
    """One source of a mixture."""

    source: str
    sequences: Count


class Text(Struct, kw_only=True):
    """Text that was learnt from."""

    source: str
    sequences: Count
    sequence_length: Count
    parts: list[TextPart] = []


class Calibration(Text, kw_only=True):
    """Text of calibration, of which some sequences were held out."""

    heldout_sequences: Count


class Healing(Struct):
    """One healing: its text, how long it learnt, and the held-out loss in nats per token."""

    text: Text
    steps: Count
    rank: Count
    loss_dense: float
    loss_before: float
    loss_after: float


class Budget(Struct):
    """Costs on the flat axis of units, in the unit of the cost model."""

    limit: Cost
    kept_cost: Cost
    total_cost: Cost


class Losses(Struct):
    """Held-out loss in nats per token; null where nothing was held out."""

    heldout_dense: float | None
    heldout_pruned: float | None

    def __post_init__(self) -> None:
        if (self.heldout_dense is None) != (self.heldout_pruned is None):
            raise ValueError("one loss is null and the other is not")


class Seconds(Struct):
    """Time that the stages took."""

    gates: float
    scales: float


class Options(Struct):
    """The options of a compression that an export and a model card read."""

    model: str
    method: str
    start: str
    rounds: Count
    round_criterion: str
    targets: str
    allocation: str
    select: str
    compensation: bool
    swap_groups: Count
    scale_epochs: Count


class Versions(Struct):
    """The release that wrote a plan."""

    grasp_deploy: str


class Provenance(Struct, kw_only=True):
    """The origin of a plan."""

    model: str
    revision: str | None
    weight_hashes: dict[str, str]  # SHA-256 by file name
    dense_layers: list[tuple[Count, Count]]  # FFN channels, KV groups
    cost_model: str
    budget: Budget
    config: Options
    calibration: Calibration
    losses: Losses
    seconds: Seconds
    versions: Versions
    fitted: list[str] = []
    healing: list[Healing] = []

    def __post_init__(self) -> None:
        """Refuse fitted tensors that no release fits: `verify` cannot prove those."""
        names = set(self.fitted)
        expected = self._weights(LINEARS if self.healing else OUTPUT_PROJECTIONS)
        complete = names <= expected if self.healing else names in (set(), expected)
        if len(names) < len(self.fitted) or not complete:
            raise ValueError("fitted names other tensors than those that are fitted or healed")

    def _weights(self, linears: tuple[str, ...]) -> set[str]:
        layers = range(len(self.dense_layers))
        return {f"model.layers.{layer}.{name}.weight" for layer in layers for name in linears}
