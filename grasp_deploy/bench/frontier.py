"""Loss against measured speed: a record of losses beside one of `bench throughput`."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from grasp_deploy.bench.throughput import Cell, ThroughputRecord
from grasp_deploy.report.losses.points import LossRecord
from grasp_deploy.stats.noise import of_repetitions
from grasp_deploy.stats.wording import listed

if TYPE_CHECKING:
    from grasp_deploy.report.figure_style import Drawing

LABEL = "output tokens per second"


def speed_drawing(losses: LossRecord, speeds: ThroughputRecord) -> Drawing | None:
    """Loss against tokens per second at the largest batch that the most models ran.

    None if fewer than two of the models were timed.
    """
    timed = timed_cells(losses, speeds)
    if len(timed) < 2:
        return None
    from grasp_deploy.report.losses.plot import frontier_drawing  # it needs matplotlib

    rates = {place: cell.rates("throughput") for place, cell in timed.items()}
    middles = {place: statistics.median(values) for place, values in rates.items()}
    spans = {place: (min(values), max(values)) for place, values in rates.items()}
    batch = next(iter(timed.values())).batch
    bars = of_repetitions("horizontal bars: range", speeds.settings.repetitions)
    note = f"{losses.text}; {speeds.settings.title}, batch {batch}; {bars}"
    return frontier_drawing("speed", note, LABEL, losses.points, middles, spans)


def untimed_line(losses: LossRecord, speeds: ThroughputRecord, name: str) -> list[dict[str, Any]]:
    """A headline on the models that the record `name` has not timed; none where it has all."""
    timed = timed_cells(losses, speeds)
    without = [point.name for place, point in enumerate(losses.points) if place not in timed]
    if not without:
        return []
    why = "nothing of that shape ran at the batch that most ran"
    sentence = f"the record {name} has no speed of {listed(without)}: {why}."
    line = {"benchmark": losses.benchmark, "baseline": losses.points[0].name}
    return [{**line, "model": "all", "outcome": "not timed", "sentence": sentence}]


def timed_cells(losses: LossRecord, speeds: ThroughputRecord) -> dict[int, Cell]:
    """The cell of each model that was timed at one batch, by its place among the losses.

    A shape has its speed whatever its weights, so models are matched by their footprints.
    """
    found: dict[int, dict[int, Cell]] = {}
    footprints = speeds.footprints
    for cell in speeds.cells:
        for place, point in enumerate(losses.points):
            if cell.rates("throughput") and footprints[cell.model] == point.footprint:
                found.setdefault(cell.batch, {}).setdefault(place, cell)
    return max(found.items(), key=lambda each: (len(each[1]), each[0]), default=(0, {}))[1]
