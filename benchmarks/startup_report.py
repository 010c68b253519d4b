"""The record of `startup`, its table and its figure: seconds until a server answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct
from rich.table import Table
from rich.text import Text

from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed

if TYPE_CHECKING:
    from grasp_deploy.report.figure_style import Drawing

TITLE = "Seconds until a server answers"
GROUP_WIDTH = 0.84
Positive = Annotated[float, Meta(gt=0)]


class Footprint(Struct):
    """The part of a model's footprint that compiling depends on."""

    distinct_shapes: int


class Model(Struct):
    """A model that was started."""

    name: str
    footprint: Footprint


class Seconds(Struct):
    """Seconds of repeated starts."""

    median: Positive
    samples: Annotated[list[Positive], Meta(min_length=1)]

    @property
    def text(self) -> str:
        return f"{self.median:.1f} ±{(max(self.samples) - min(self.samples)) / 2:.1f}"


class Cell(Struct):
    """Starts of one model, with an empty cache of compiled graphs and with a filled one."""

    model: str
    cold_seconds: Seconds
    warm_seconds: Seconds

    @property
    def starts(self) -> tuple[Seconds, Seconds]:
        return self.cold_seconds, self.warm_seconds


class Startup(Struct):
    """The figures of a record of `startup`; the first model is the baseline."""

    models: Annotated[list[Model], Meta(min_length=1)]
    cells: Annotated[list[Cell], Meta(min_length=1)]

    @property
    def shapes(self) -> dict[str, int]:
        """Distinct layer shapes by model."""
        return {model.name: model.footprint.distinct_shapes for model in self.models}


def startup_of(record: dict[str, Any], path: Path) -> Startup:
    """The starts that a record holds; InputError names the file and what is wrong in it."""
    remedy = "run `python -m benchmarks.startup` again, or name another"
    startup = typed(record, Startup, path, remedy)
    if [cell.model for cell in startup.cells] != [model.name for model in startup.models]:
        raise InputError(f"{path} is damaged: it does not have one cell for each model; {remedy}")
    return startup


def startup_table(startup: Startup) -> Table:
    """Median seconds with half their range, and the change against the first model."""
    table = Table(
        title=TITLE,
        title_justify="left",
        caption="± half the range of the repetitions; Δ: change against the first model",
        caption_justify="left",
    )
    table.add_column("model", overflow="fold")
    table.add_column("layer shapes", justify="right")
    for head in ("cold", "Δ", "warm", "Δ"):
        table.add_column(head, justify="right", no_wrap=True)
    first = startup.cells[0]
    for cell in startup.cells:
        figures = []
        for seconds, baseline in zip(cell.starts, first.starts, strict=True):
            change = "" if cell is first else f"{seconds.median / baseline.median - 1:+.1%}"
            figures += [seconds.text, change]
        table.add_row(Text(cell.model), f"{startup.shapes[cell.model]:,}", *figures)
    return table


def startup_drawing(startup: Startup) -> Drawing:
    """Bars of medians with the range of the repetitions."""
    from grasp_deploy.report.figure_style import (
        INK,
        color_of,
        count_from_zero,
        finished,
        new_axes,
        patch_handle,
    )

    axes = new_axes(TITLE, "median; bars: all repetitions; in brackets: distinct layer shapes")
    width = GROUP_WIDTH / len(startup.cells)
    handles = []
    for index, cell in enumerate(startup.cells):
        offset = (index - (len(startup.cells) - 1) / 2) * width
        for place, seconds in enumerate(cell.starts):
            axes.bar(place + offset, seconds.median, 0.92 * width, color=color_of(index))
            low, high = min(seconds.samples), max(seconds.samples)
            axes.vlines(place + offset, low, high, color=INK, linewidth=1.2)
        handles.append(patch_handle(index, f"{cell.model} ({startup.shapes[cell.model]})"))
    axes.set_xticks(range(2), labels=["cold: nothing compiled yet", "warm: compiled before"])
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("seconds")
    count_from_zero(axes)
    return finished("startup", TITLE, axes, handles)
