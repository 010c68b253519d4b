"""Size and loss of each model against the first, and the knee of loss against size."""

from __future__ import annotations

from typing import Any

from grasp_deploy.files.sizes import format_bytes
from grasp_deploy.report.losses.points import LossRecord, by_size, frontier_and_knee

KNEE, NO_KNEE, FRONTIER, BEATEN = "knee", "no knee", "frontier", "beaten"


def headlines(record: LossRecord) -> list[dict[str, Any]]:
    """One sentence on the knee; none for fewer than three models."""
    points = record.points
    if len(points) < 3:
        return []
    line = {"benchmark": record.benchmark, "baseline": points[0].name}
    _, knee = frontier_and_knee(by_size(points))
    if knee is None:
        sentence = "the curve of loss against size has no knee among these models."
        return [{**line, "model": "all", "outcome": NO_KNEE, "sentence": sentence}]
    size, lost = points[knee].footprint.weight_bytes, points[knee].loss - points[0].loss
    sentence = (
        f"knee of the curve at {format_bytes(size)} of weights, {lost:+.3f} nats per token against "
        f"{points[0].name}; smaller models lose faster."
    )
    return [{**line, "model": points[knee].name, "outcome": KNEE, "sentence": sentence}]


def verdicts(record: LossRecord) -> list[dict[str, Any]]:
    """One JSON row for each model but the first: its size as a share, and what it lost.

    A model is `beaten` if another has less weights and less loss.
    """
    points = record.points
    frontier, knee = frontier_and_knee(by_size(points))
    rows = []
    for place, point in enumerate(points[1:], start=1):
        outcome = FRONTIER if place in frontier else BEATEN
        size, first = point.footprint, points[0].footprint
        rows.append(
            {
                "benchmark": record.benchmark,
                "model": point.name,
                "baseline": points[0].name,
                "weight_share": size.weight_bytes / first.weight_bytes,
                "kv_share": size.kv_bytes_per_token / first.kv_bytes_per_token,
                "excess": point.loss - points[0].loss,
                "excess_error": point.error,
                "outcome": KNEE if place == knee else outcome,
            }
        )
    return rows
