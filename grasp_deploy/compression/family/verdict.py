"""The knee of a family: the budget behind which loss begins to rise faster than size falls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grasp_deploy.compression.family.record import FamilyRecord
from grasp_deploy.stats.wording import memory_size

KNEE, NO_KNEE = "knee", "no knee"
LEAST_BEND = 0.05  # of the curve's height, below which a bend is none


def points(record: FamilyRecord) -> list[tuple[float, float]]:
    """Weight bytes and held-out loss of the dense model and of each member; none without a loss."""
    losses = [record.dense_loss, *(member.heldout_loss for member in record.members)]
    sizes = [float(model.footprint.weight_bytes) for model in record.models]
    pairs = zip(sizes, losses, strict=True)
    return [(size, loss) for size, loss in pairs if loss is not None]


def knee_of(curve: Sequence[tuple[float, float]]) -> int | None:
    """The place of the point that lies farthest below the line from the first to the last.

    Both axes count from 0 to 1 between those two (Satopää et al. 2011). None for a line, or for a
    curve that bends the other way.
    """
    if len(curve) < 3:
        return None
    (first_x, first_y), (last_x, last_y) = curve[0], curve[-1]
    if first_x == last_x or last_y <= first_y:
        return None
    bends = [
        (first_x - x) / (first_x - last_x) - (y - first_y) / (last_y - first_y) for x, y in curve
    ]
    place = max(range(len(curve)), key=bends.__getitem__)
    return place if bends[place] >= LEAST_BEND else None


def headlines(record: FamilyRecord) -> list[dict[str, Any]]:
    """One sentence on the knee."""
    curve = points(record)
    place = knee_of(curve)
    line = {"benchmark": "family", "baseline": record.models[0].name}
    if place is None:
        sentence = "the curve of loss against size has no knee among these budgets."
        return [{**line, "model": "family", "outcome": NO_KNEE, "sentence": sentence}]
    name, size = record.models[place].name, memory_size(int(curve[place][0]))
    lost = curve[place][1] - curve[0][1]
    sentence = (
        f"knee of the curve at {size} of weights, {lost:+.3f} nats per token against dense; "
        "smaller budgets lose faster."
    )
    return [{**line, "model": name, "outcome": KNEE, "sentence": sentence}]


def verdicts(record: FamilyRecord) -> list[dict[str, Any]]:
    """One JSON row for each member: its size as a share of the dense one's, and what it lost."""
    curve = points(record)
    place, dense = knee_of(curve), record.models[0].footprint
    return [
        {
            "benchmark": "family",
            "model": member.model,
            "baseline": record.models[0].name,
            "weight_share": model.footprint.weight_bytes / dense.weight_bytes,
            "kv_share": model.footprint.kv_bytes_per_token / dense.kv_bytes_per_token,
            "excess": member.excess,
            "excess_error": member.excess_error,
            "outcome": KNEE if number == place else "member",
        }
        for number, (model, member) in enumerate(
            zip(record.models[1:], record.members, strict=True), start=1
        )
    ]
