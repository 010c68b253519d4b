"""Stability of the mask while gates are learnt.

The share of units whose state survives from one snapshot to the next, FFN channels and KV groups
apart: the projected straight-through gates against the paper's Gumbel-TopK, and against gates that
start behind a cut in rounds, with a falling learning rate. All see the same sequences in the same
order. Draw the record again with `python -m benchmarks.report`.

    python -m benchmarks.mask_stability --model ../shared/models/ref-llama-7m --keep 0.5 \
        --calibration ../shared/data/c4/c4_sample.jsonl --calibration-split 'train[:900]'
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from benchmarks.baselines.grasprune import learning
from benchmarks.common.output import (
    check_place,
    command_of,
    new_parser,
    run_command,
    working_folder,
    write,
)
from benchmarks.study.options import add_study_options, keeps_and_seeds, settings_of
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.mask import mask_of
from grasp_deploy.compression.own_text import with_own_text
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.compression.room import load_for
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.compression.scores import gate_steps, initial_scores
from grasp_deploy.compression.stages import Stages
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import new_record
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.training import LearningState

WAYS = ("projected straight-through", "Gumbel-TopK", "straight-through behind rounds")
SNAPSHOTS = 32
# Shares of units whose state is the same in a snapshot and in the next one.
Survival = Annotated[list[Annotated[float, Meta(ge=0, le=1)]], Meta(min_length=2)]


class Row(Struct):
    """One way to learn gates."""

    variant: str
    ffn_survival: Survival
    kv_survival: Survival


class Stability(Struct):
    """The figures of a record of `mask_stability`."""

    rows: Annotated[list[Row], Meta(min_length=1)]


def stability_of(record: dict[str, Any], path: Path) -> Stability:
    """The shares that a record holds; InputError names the file and what is wrong in it."""
    return typed(record, Stability, path, "run `python -m benchmarks.mask_stability` again")


def stability_table(stability: Stability) -> Table:
    """The mean over the first half and over the second half of learning, in percent."""
    table = Table(title="Units whose state survives to the next snapshot, %", title_justify="left")
    table.add_column("gates", overflow="fold")
    for kind in ("FFN", "KV"):
        for half in ("1st half", "2nd half"):
            table.add_column(f"{kind}, {half}", justify="right")
    for row in stability.rows:
        table.add_row(Text(row.variant), *_halves(row.ffn_survival), *_halves(row.kv_survival))
    return table


def _halves(shares: list[float]) -> list[str]:
    middle = len(shares) // 2
    return [f"{100 * statistics.fmean(half):.2f}" for half in (shares[:middle], shares[middle:])]


def masks_while_learning(
    name: str, job: PreparedRun, work: Path, on_progress: OnProgress
) -> list[Tensor]:
    """`(N,)` masks of the scores alone, without noise, at the start and after even spans."""
    with Workspace.open(RunOptions(work / "run", overwrite=True), job) as workspace:
        model = load_for(job, offload=False)
        stages = Stages(workspace, job.budget.units, on_progress)
        job = with_own_text(job, model, stages)
        frozen = FrozenModel(job, model)
        text = CalibrationText(job.blocks.train, job.config.batch_size, seed=job.config.seed)
        if name == WAYS[2]:
            initial, _ = initial_scores(frozen, stages)
            state = LearningState(initial, job.gate_schedule.learning_rate)
            steps = gate_steps(frozen, state)
        else:
            state, steps = learning(frozen.model, job.budget, text, noisy=name == WAYS[1])
        masks = [mask_of(frozen, state.values.detach()).cpu()]
        for step in steps:
            stages.report("gates", step.step, step.steps)
            if step.step % max(1, step.steps // SNAPSHOTS) == 0:
                masks.append(mask_of(frozen, state.values.detach()).cpu())
    return masks


def survival(masks: list[Tensor], chosen: Tensor) -> list[float]:
    """Share of the chosen units whose state is the same in a snapshot and in the next."""
    return [
        float((before == after)[chosen].float().mean())
        for before, after in itertools.pairwise(masks)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    add_study_options(parser, keep="0.5")
    options = parser.parse_args(arguments)
    check_place(options.output, "mask-stability")
    (keep, *others), (seed, *seeds) = keeps_and_seeds(options)
    if others or seeds:
        raise InputError("masks are watched under one budget and one seed: name one of each")
    with working_folder("mask-stability") as (folder, on_progress):
        settings = {**settings_of(options, folder), "keep": keep, "seed": seed}
        record = new_record("mask-stability", command_of("mask_stability", arguments), settings)
        rows = []
        job = prepare(CompressConfig(**settings))
        for name in WAYS:
            masks = masks_while_learning(name, job, folder, on_progress)
            kv = job.budget.units.is_kv
            rows.append(Row(name, survival(masks, ~kv), survival(masks, kv)))
            write(options.output, {**record, "rows": to_builtins(rows)})
    Console().print(stability_table(Stability(rows)))


if __name__ == "__main__":
    run_command(main)
