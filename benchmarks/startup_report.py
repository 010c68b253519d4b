"""How long a server takes to answer, cold and warm, model by model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grasp_deploy.report.figure_style import (
    INK,
    Drawing,
    color_of,
    count_from_zero,
    finished,
    new_axes,
    patch_handle,
)

STARTS = {"cold_seconds": "cold: nothing compiled yet", "warm_seconds": "warm: compiled before"}
GROUP_WIDTH = 0.84


def startup_drawings(record: dict[str, Any]) -> Iterator[Drawing]:
    """Bars of medians with the range of the repetitions."""
    title = "Seconds until a server answers"
    axes = new_axes(title, "median; bars: all repetitions; in brackets: distinct layer shapes")
    width = GROUP_WIDTH / len(record["cells"])
    handles = []
    for index, cell in enumerate(record["cells"]):
        offset = (index - (len(record["cells"]) - 1) / 2) * width
        for place, start in enumerate(STARTS):
            samples, median = cell[start]["samples"], cell[start]["median"]
            axes.bar(place + offset, median, 0.92 * width, color=color_of(index))
            axes.vlines(place + offset, min(samples), max(samples), color=INK, linewidth=1.2)
        shapes = next(
            model["footprint"]["distinct_shapes"]
            for model in record["models"]
            if model["name"] == cell["model"]
        )
        handles.append(patch_handle(index, f"{cell['model']} ({shapes})"))
    axes.set_xticks(range(len(STARTS)), labels=list(STARTS.values()))
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("seconds")
    count_from_zero(axes)
    yield finished("startup", title, axes, handles)
