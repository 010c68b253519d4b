"""Seconds until vLLM serves a model whose layers differ, cold and warm.

Three checkpoints of one model: dense; pruned with the same sizes in every layer; pruned to the same
budget with every layer different. Each is served until it answers: first with an empty cache of
compiled graphs (cold), then with the cache that this left (warm). The checkpoints take turns.

    python -m benchmarks.startup --model ../shared/models/ref-llama-7m --repeats 3
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from msgspec import Meta, Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from benchmarks.common.models import MODEL
from benchmarks.common.output import (
    add_output_options,
    check_place,
    command_of,
    new_parser,
    run_command,
    working_folder,
    write,
)
from benchmarks.common.plans import plan_of, random_mask
from benchmarks.common.spread import spread
from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.engine.serve import running_server
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.record import new_record
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.units import UnitTable

if TYPE_CHECKING:
    from grasp_deploy.report.figure_style import Drawing

SMALL = ["--max-model-len", "256", "--max-num-seqs", "8"]
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


def uniform_mask(units: UnitTable, keep: float) -> Tensor:
    """`(N,)` mask that keeps the first channels and groups of each layer, as many in every one."""
    parts = []
    for channels, groups in zip(units.ffn_channels, units.kv_groups, strict=True):
        parts += [_first(channels, keep), _first(groups, keep)]
    mask = torch.cat(parts)
    kept = units.kept_per_layer(mask)
    assert len(set(kept)) == 1, f"the layers differ: {kept}"
    return mask


def _first(count: int, keep: float) -> Tensor:
    return torch.arange(count) < max(1, round(keep * count))


def write_models(base: Path, work: Path, keep: float) -> dict[str, Path]:
    """The dense model, and its two pruned forms as checkpoints."""
    shape = model_shape(read_config(base))
    config = CompressConfig(model=base.name, keep=keep)
    budget = budget_for(config, shape, torch.device("cpu"))
    masks = {
        "uniform": uniform_mask(budget.units, keep),
        "heterogeneous": random_mask(budget, seed=0),
    }
    paths = {name: _export(base, work / name, budget, mask) for name, mask in masks.items()}
    return {"dense": base, **paths}


def _export(base: Path, output: Path, budget: Budget, mask: Tensor) -> Path:
    export(plan_of(base, budget, mask, torch.ones(len(mask))), base, output)
    return output


def start_seconds(model: Path, work: Path, flags: list[str]) -> float:
    """Seconds from the start of vLLM's server until it answers that it is healthy."""
    start = time.perf_counter()
    with running_server(model, [*SMALL, *flags], work / "vllm.log"):
        return time.perf_counter() - start


def measure(
    models: dict[str, Path], work: Path, repeats: int, flags: list[str]
) -> list[dict[str, Any]]:
    """Cells of the seconds that each model takes to start, cold and warm in turns."""
    cache = work / "cache"
    os.environ["VLLM_CACHE_ROOT"] = str(cache)
    seconds: dict[str, dict[str, list[float]]] = {n: {"cold": [], "warm": []} for n in models}
    for _ in range(repeats):
        for name, path in models.items():
            shutil.rmtree(cache, ignore_errors=True)
            for state in ("cold", "warm"):
                seconds[name][state].append(start_seconds(path, work, flags))
                print(f"{name} {state}: {seconds[name][state][-1]:.1f} s", file=sys.stderr)
    return [
        {"model": name, **{f"{state}_seconds": spread(s) for state, s in states.items()}}
        for name, states in seconds.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of a dense model")
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--enforce-eager", action="store_true", help="compile nothing")
    add_output_options(parser, "one model, once, eager")
    options = parser.parse_args(arguments)
    check_place(options.output, "startup")
    if options.smoke:
        options.model, options.repeats, options.enforce_eager = MODEL, 1, True
    flags = ["--enforce-eager"] if options.enforce_eager else []
    with working_folder("startup") as (work, _):
        models = write_models(options.model, work, options.keep)
        if options.smoke:
            models = {"heterogeneous": models["heterogeneous"]}
        shapes = {name: model_shape(read_config(path)) for name, path in models.items()}
        record = new_record(
            "startup",
            command_of("startup", arguments),
            {
                "model": options.model.name,
                "keep": options.keep,
                "repeats": options.repeats,
                "vllm_flags": [*SMALL, *flags],
            },
            models=[
                {"name": name, "footprint": footprint(shape).as_dict()}
                for name, shape in shapes.items()
            ],
            cells=measure(models, work, options.repeats, flags),
        )
    Console().print(startup_table(startup_of(record, Path("the new record"))))
    write(options.output, record)


if __name__ == "__main__":
    run_command(main)
