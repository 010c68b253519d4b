"""Seconds and memory of each stage of a compression at a true shape.

Random weights and random tokens: time and memory do not depend on them. One round, the
paper's gates, the closed-form compensation, the scales with what the dense model makes of their
text, and the cut in rounds. Beside them the projection alone, which each step of gates makes once.

    python -m benchmarks.pipeline --config benchmarks/configs/qwen3-0.6b.json --device cuda
"""

import argparse
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from transformers import PreTrainedModel

from benchmarks.baselines.grasprune import EPOCHS
from benchmarks.common import output
from benchmarks.common.models import MODEL
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.read.loading import random_model, resolve_device, wanted_dtype
from grasp_deploy.checkpoint.read.source import ModelSource
from grasp_deploy.checkpoint.read.validate import StoredModel
from grasp_deploy.cli.console import stdout
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.mask import final_mask, learn_scales, refit
from grasp_deploy.compression.objective import Objective
from grasp_deploy.compression.own_text import with_own_text
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.compression.scores import initial_scores, learn_gates
from grasp_deploy.compression.stages import Stages
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import Blocks, TextSource
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.pruning.projection import project
from grasp_deploy.report.tables import figure_table

SCHEDULE = CompressConfig("model", keep=0.5)  # the paper's too has 512 sequences


def random_job(options: argparse.Namespace, **changes: Any) -> PreparedRun:
    """A prepared run on random tokens."""
    device = resolve_device(options.device)
    shape = model_shape(read_config(options.config))
    config = CompressConfig(
        model=str(options.config),
        keep=options.keep,
        sequences=options.sequences,
        sequence_length=options.sequence_length,
        batch_size=options.batch_size,
        device=options.device,
        **changes,
    )
    generator = torch.Generator().manual_seed(0)
    size = (options.sequences, options.sequence_length)
    tokens = torch.randint(shape.vocab_size, size, generator=generator)
    return PreparedRun(
        config=config,
        source=ModelSource(str(options.config), options.config.parent, None),
        base=StoredModel(options.config.parent, {}, shape, {}),
        device=device,
        dtype=wanted_dtype(shape.dtype, device, config.dtype),
        budget=budget_for(config, shape, device),
        text=Blocks(tokens, TextSource("random tokens")),
        weight_hashes={},
        text_hash="",
    )


def measured(device: torch.device, stage: Callable[[], Any]) -> tuple[Any, float, int]:
    """The result of a stage, its seconds, and its peak memory in bytes."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    result = stage()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return result, time.perf_counter() - began, torch.cuda.max_memory_allocated(device)
    # A CPU's counter cannot be reset: the peak of the process so far.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return result, time.perf_counter() - began, peak


def mask_chosen(frozen: FrozenModel, stages: Stages) -> torch.Tensor:
    """`(N,)` mask of the scores that the run asks for."""
    initial, reached = initial_scores(frozen, stages)
    scores = learn_gates(frozen, stages, Objective(frozen, stages), initial, reached)
    return final_mask(frozen, scores, reached)


def on_mask(
    stage: Callable[..., Any], masks: dict[str, torch.Tensor], frozen: FrozenModel, stages: Stages
) -> Any:
    """What a stage makes of the mask of one round."""
    return stage(frozen, stages, Objective(frozen, stages), masks["one round"])


def projection_seconds(options: argparse.Namespace) -> float:
    """Seconds of one projection onto the budget, the fastest of ten."""
    budget = random_job(options).budget
    scores = torch.rand(budget.units.size, generator=torch.Generator().manual_seed(0))
    scores = scores.to(budget.costs.device)
    return min(measured(scores.device, lambda: project(scores, budget))[1] for _ in range(10))


def stage_rows(
    options: argparse.Namespace, model: PreTrainedModel, work: Path, on_progress: OnProgress
) -> Iterator[dict[str, Any]]:
    """A row for each stage: its seconds and peak memory, and the time at the paper's schedule."""
    masks: dict[str, torch.Tensor] = {}
    rounds: dict[str, Any] = {"method": "progressive"}
    gates = {"method": "benchmarks.baselines.grasprune:paper"}
    for name, changes, stage, part in (  # of the sequences; without one it reads them all
        ("one round", {**rounds, "rounds": 1}, mask_chosen, "criterion"),
        ("gates", gates, mask_chosen, ""),
        ("compensation", rounds, partial(on_mask, refit, masks), "compensation"),
        ("scales", rounds, partial(on_mask, learn_scales, masks), ""),
        ("rounds", rounds, mask_chosen, "criterion"),
    ):
        job = random_job(options, **changes)
        folder = work / name.replace(", ", "-")
        with Workspace.open(RunOptions(folder), job) as workspace:
            stages = Stages(workspace, job.budget.units, on_progress)
            frozen = FrozenModel(with_own_text(job, lambda: model, stages), model)
            result, seconds, peak = measured(job.device, partial(stage, frozen, stages))
        if name == "one round":
            masks[name] = result
        epochs = EPOCHS if name == "gates" else 1
        blocks = epochs * len(job.read_in(part) if part else job.blocks.train)
        at_schedule = epochs * (SCHEDULE.sequences_of(part) if part else SCHEDULE.sequences)
        yield {
            "stage": name,
            "blocks": blocks,
            "seconds": seconds,
            "peak_memory_bytes": peak,
            "schedule_seconds": seconds / blocks * at_schedule,
        }


def stage_table(record: dict[str, Any]) -> Table:
    heads = ("stage", "blocks", "seconds", "peak, MiB", "seconds at the paper's schedule")
    table = figure_table("Stages of a compression", heads)
    for row in record["rows"]:
        table.add_row(
            row["stage"],
            f"{row['blocks']}",
            f"{row['seconds']:.1f}",
            f"{row['peak_memory_bytes'] / 2**20:,.0f}",
            f"{row['schedule_seconds']:,.0f}",
        )
    table.caption = f"one projection: {1e3 * record['projection_seconds']:.2f} ms"
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    parser.add_argument("--config", type=Path, help="default: that of qwen3-0.6b")
    parser.add_argument("--keep", type=float, default=0.6)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=1)
    options = output.parsed(parser, arguments, "pipeline", "the embedded model's shape")
    if options.smoke:
        options.config, options.device = options.config or MODEL / "config.json", "cpu"
        options.sequences, options.sequence_length, options.batch_size = 8, 32, 2
    options.config = options.config or output.CONFIGS / "qwen3-0.6b.json"
    model = random_model(options.config, resolve_device(options.device))
    settings = {key: str(value) for key, value in vars(options).items() if key != "output"}
    record = output.new_record("pipeline", arguments, settings)
    with output.working_folder("pipeline") as (folder, on_progress):
        # A run is identified by the config.json of its model's folder.
        options.config = Path(shutil.copyfile(options.config, folder / "config.json"))
        record["projection_seconds"] = projection_seconds(options)
        record["rows"] = list(stage_rows(options, model, folder, on_progress))
    stdout.print(stage_table(record))
    output.write(options.output, record)


if __name__ == "__main__":
    output.run_command(main)
