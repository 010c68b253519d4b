"""Peak device memory of each stage at a true shape, predicted without the device or the weights.

The stages' own code runs on tensors of the meta device, which have shapes and no data, and live
bytes are counted (`common.live_memory`). Layers are alike, so a stage that goes layer by layer ends
after the first. To calibrate, the same count runs beside PyTorch's CPU allocator on the embedded
model: `allocator_ratio` is the allocator's peak over the counted one.

    python -m benchmarks.peak_memory --config benchmarks/configs/llama-2-7b.json

A card of so many GB fits a stage if a tenth of it stays free, for the driver, the libraries'
workspaces, and what the allocator loses between tensors.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.common.live_memory import LiveMemory
from benchmarks.common.models import MODEL
from benchmarks.common.output import (
    CONFIGS,
    add_output_options,
    check_place,
    command_of,
    new_parser,
    run_command,
    working_folder,
    write,
)
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.read.loading import random_model
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.compression.synthesize import synthesize
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.record import new_record
from grasp_deploy.healing.lora import LoraDistiller
from grasp_deploy.healing.settings import HealConfig
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.compensation import compensate
from grasp_deploy.pruning.criteria import obs
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule
from grasp_deploy.pruning.training import LearningState, freeze, learn_scales, learn_scores

CARDS_GB = (24, 48, 80)
USABLE_SHARE = 0.9
STAGES = 6
DEFAULTS = CompressConfig(model="", keep=1.0)


class _TwoLosses(CalibrationText):
    """A text of which two batches alone run backward: all others would need the same."""

    def losses(self, model: nn.Module, criterion: str) -> Iterator[tuple[Tensor, Tensor]]:
        yield from islice(super().losses(model, criterion), 2)


class _EnoughError(Exception):
    """Raised to end a stage that only repeats itself from there on."""


def gate_steps(model: nn.Module, budget: Budget, blocks: CalibrationBlocks) -> None:
    """Held-out loss and two steps of gates, then of scales: the second has the moments."""
    schedule = Schedule(blocks, 1, DEFAULTS.batch_size, DEFAULTS.learning_rate, 0)
    start = torch.zeros(budget.units.size, device=budget.costs.device)
    state = LearningState(start, DEFAULTS.learning_rate)
    temperature = DEFAULTS.temperature
    # Each ends with its statement, and takes its hooks along.
    list(islice(learn_scores(model, budget, schedule, state, temperature=temperature), 2))
    hidden = (2 * budget.units.layers + 1) * int(model.config.hidden_size)  # type: ignore[union-attr,arg-type]
    mask = torch.ones_like(start, dtype=torch.bool)
    state = LearningState(start.new_ones(len(start) + hidden), DEFAULTS.learning_rate)
    list(islice(learn_scales(model, budget.units, mask, schedule, state), 2))


def score_first_layer(model: nn.Module, budget: Budget, blocks: CalibrationBlocks) -> None:
    """The gradients of all layers, then `obs` on the groups and some channels of the first.

    It ends where the second panel of channels would begin: each panel needs less than the first.
    """
    text = _TwoLosses(blocks.train[: DEFAULTS.sequences_of("criterion")], DEFAULTS.batch_size)
    first_panels, whole = iter((obs._panel,)), obs._panel

    def panel(inverse: Tensor, moments: Tensor, stays: Tensor, pivots: int) -> Any:
        if moments.shape[-1] > 1:
            return whole(inverse, moments, stays, pivots)
        for allowed in first_panels:
            return allowed(inverse, moments, stays, pivots)
        raise _EnoughError

    with patch.object(obs, "_panel", panel), suppress(_EnoughError):
        obs.obs_scores(model, budget.units, text)


def refit_first_layer(model: nn.Module, budget: Budget, blocks: CalibrationBlocks) -> None:
    """Least squares of the output projections of the first layer, and the start of the next."""
    kept = torch.ones_like(budget.costs, dtype=torch.bool)
    fits = compensate(
        model,
        budget.units,
        kept,
        blocks.train[: DEFAULTS.sequences_of("compensation")],
        batch_size=DEFAULTS.batch_size,
        ridge=DEFAULTS.ridge,
    )
    list(islice(fits, 3))


def healing_steps(teacher: nn.Module, student: nn.Module, blocks: CalibrationBlocks) -> None:
    """Two steps of healing."""
    distiller = LoraDistiller(HealConfig("", steps=2), blocks, teacher, student)
    list(distiller.learn())


def stage_rows(options: argparse.Namespace, work: Path) -> Iterator[dict[str, Any]]:
    """A row for each stage: its peak in bytes, and the tensors alive before it."""
    shape = model_shape(read_config(options.config))
    config = CompressConfig(model=str(options.config), keep=options.keep)
    on_cpu = budget_for(config, shape, torch.device("cpu"))
    tokens = torch.zeros(options.sequences, options.sequence_length, dtype=torch.int64)
    blocks = CalibrationBlocks.split(tokens)

    def row(stage: str, memory: LiveMemory, run: Callable[[], object]) -> dict[str, Any]:
        before = memory.live_bytes
        return {"stage": stage, "before_bytes": before, "peak_bytes": memory.peak_of(run)}

    with LiveMemory("meta") as memory:
        model = random_model(options.config, "meta", options.dtype)
        yield row("the dense model", memory, model.eval)
        costs, tie_order = on_cpu.costs.to("meta"), on_cpu.tie_order.to("meta")
        budget = replace(on_cpu, costs=costs, tie_order=tie_order)
        for checkpointing in (False, True):
            freeze(model, checkpointing)
            name = "a step of gates or scales" + ", gradient checkpointing" * checkpointing
            yield row(name, memory, lambda: gate_steps(model, budget, blocks))
        model.gradient_checkpointing_disable()
        freeze(model)
        yield row("rounds: scoring", memory, lambda: score_first_layer(model, budget, blocks))
        memory.found_share = options.keep
        yield row("least squares", memory, lambda: refit_first_layer(model, budget, blocks))
        memory.found_share = 1.0
        synthesize(config, work / "pruned")
        student = random_model(work / "pruned", "meta", options.dtype)
        yield row("healing", memory, lambda: healing_steps(model, student, blocks))


def allocator_ratios() -> dict[str, float]:
    """Growth of PyTorch's CPU allocator over that of live tensors, for stages that run for real."""
    shape, ratios = model_shape(read_config(MODEL)), {}
    generator = torch.Generator().manual_seed(0)
    with LiveMemory("cpu") as memory:
        model = random_model(MODEL, "cpu", "float32")
        freeze(model)
        budget = budget_for(CompressConfig(model="", keep=0.5), shape, torch.device("cpu"))
        tokens = torch.randint(shape.vocab_size, (8, 256), generator=generator)
        blocks = CalibrationBlocks.split(tokens)
        for stage in (gate_steps, score_first_layer, refit_first_layer):
            run = partial(stage, model, budget, blocks)
            run()  # whatever is made once and kept
            growth = memory.peak_of(run) - memory.live_bytes
            ratios[stage.__name__] = allocated_peak(run) / growth
    return ratios


def allocated_peak(run: Callable[[], object]) -> int:
    """Most bytes that PyTorch's CPU allocator held at once, above what it held before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run()
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


def smallest_card(peak_bytes: int) -> str:
    """The smallest card that a stage fits, in words."""
    for size in CARDS_GB:
        if peak_bytes <= USABLE_SHARE * size * 1e9:
            return f"{size} GB"
    return f"none of {', '.join(map(str, CARDS_GB))} GB"


def peak_table(record: dict[str, Any]) -> Table:
    title = f"Predicted peak memory, {Path(record['settings']['config']).stem}"
    table = Table("stage", title=title, title_justify="left")
    for head in ("before, GB", "peak, GB", "fits"):
        table.add_column(head, justify="right")
    for row in record["rows"]:
        sizes = (row["before_bytes"], row["peak_bytes"])
        cells = [f"{size / 1e9:.2f}" for size in sizes]
        table.add_row(row["stage"], *cells, smallest_card(row["peak_bytes"]))
    return table


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--config", type=Path, help="default: that of llama-2-7b")
    parser.add_argument("--keep", type=float, default=0.6)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sequences", type=int, default=288, help="enough for the least squares")
    parser.add_argument("--sequence-length", type=int, default=DEFAULTS.sequence_length)
    add_output_options(parser, "the embedded model's shape and short text")
    options = parser.parse_args(arguments)
    check_place(options.output, "peak_memory")
    if options.smoke:
        options.config = options.config or MODEL / "config.json"
        options.sequences, options.sequence_length = 8, 32
    options.config = options.config or CONFIGS / "llama-2-7b.json"
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    settings = {key: str(value) for key, value in vars(options).items() if key != "output"}
    record = new_record("peak_memory", command_of("peak_memory", arguments), settings)
    record["allocator_ratio"] = allocator_ratios()
    record["rows"] = []
    with working_folder("peak_memory") as (folder, on_progress):
        for step, row in enumerate(stage_rows(options, folder), start=1):
            record["rows"].append(row)
            on_progress({"stage": "stages", "step": step, "steps": STAGES})
    console = Console()
    console.print(peak_table(record))
    for stage, ratio in record["allocator_ratio"].items():
        console.print(f"{stage} on the embedded model: allocator over count {ratio:.3f}")
    write(options.output, record)


if __name__ == "__main__":
    run_command(main)
