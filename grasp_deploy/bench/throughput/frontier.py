"""Loss against measured speed: a record of losses beside one of `bench throughput`."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from grasp_deploy.bench.throughput.record import ThroughputRecord
from grasp_deploy.report.losses.points import LossPoint, LossRecord

if TYPE_CHECKING:
    from grasp_deploy.report.figure_style import Drawing

LABEL = "output tokens per second"


def speed_drawing(losses: LossRecord, speeds: ThroughputRecord) -> Drawing | None:
    """Loss against tokens per second at the largest batch that all models ran.

    A shape has its speed whatever its weights, so models are matched by their footprints. None if
    fewer than two were timed.
    """
    points, rates = [], []
    batch, timed = _largest_common(losses, speeds)
    for point, model in timed:
        cell = next(c for c in speeds.cells if c.model == model and c.batch == batch)
        points.append(point)
        rates.append(statistics.median(cell.rates("throughput")))
    if len(points) < 2:
        return None
    from grasp_deploy.report.losses.plot import frontier_drawing  # it needs matplotlib

    note = f"{losses.text}; {speeds.settings.title}, batch {batch}"
    return frontier_drawing("speed", note, LABEL, points, rates, more_is_better=True)


def _largest_common(
    losses: LossRecord, speeds: ThroughputRecord
) -> tuple[int, list[tuple[LossPoint, str]]]:
    """The largest batch at which the most models ran, and these with their names in `speeds`."""
    batches = sorted({cell.batch for cell in speeds.cells}, reverse=True)
    found = []
    for batch in batches:
        ran = {c.model for c in speeds.cells if c.batch == batch and c.rates("throughput")}
        models = [model for model in speeds.models if model.name in ran]
        pairs = [
            (point, model.name)
            for point in losses.points
            if (model := next((m for m in models if m.footprint == point.footprint), None))
        ]
        found.append((batch, pairs))
    return max(found, key=lambda each: len(each[1]))
