"""Stability of the mask while gates are learnt.

The share of units whose state survives from one snapshot to the next, FFN channels and KV groups
apart: the projected straight-through gates against the paper's Gumbel-TopK. Both see the same
sequences in the same order. Draw the record again with `python -m benchmarks.report`.

    python -m benchmarks.mask_stability --model ../shared/models/ref-llama-7m --keep 0.5 \
        --calibration ../shared/data/c4/c4_sample.jsonl --calibration-split 'train[:900]'
"""

import itertools
import statistics
from collections.abc import Sequence
from typing import Annotated

import torch
from msgspec import Meta, Struct, to_builtins
from rich.table import Table
from rich.text import Text
from torch import Tensor

from benchmarks.baselines.grasprune import TEMPERATURE, learning
from benchmarks.common import output
from benchmarks.study.options import add_study_options, keeps_and_seeds, settings_of
from grasp_deploy.checkpoint.read.loading import load_checked
from grasp_deploy.cli.console import stdout
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.rules import writes_own
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.training import freeze
from grasp_deploy.report.tables import figure_table

WAYS = {"projected straight-through": False, "Gumbel-TopK": True}  # whether noise is added
SNAPSHOTS = 32


class Survival(Struct):
    """How many units keep their state from one snapshot to the next, for one way of learning."""

    variant: str
    ffn_survival: Annotated[list[float], Meta(min_length=2)]
    kv_survival: Annotated[list[float], Meta(min_length=2)]


class Stability(Struct):
    """The figures of a record of `mask-stability`."""

    rows: list[Survival]


def stability_table(record: Stability) -> Table:
    """The mean over the first half and over the second half of learning, in percent."""
    heads = ("gates", "FFN, 1st half", "FFN, 2nd half", "KV, 1st half", "KV, 2nd half")
    table = figure_table("Units whose state survives to the next snapshot, %", heads)
    for row in record.rows:
        table.add_row(Text(row.variant), *_halves(row.ffn_survival), *_halves(row.kv_survival))
    return table


def _halves(shares: list[float]) -> list[str]:
    middle = len(shares) // 2
    return [f"{100 * statistics.fmean(half):.2f}" for half in (shares[:middle], shares[middle:])]


def masks_while_learning(noisy: bool, job: PreparedRun, on_progress: OnProgress) -> list[Tensor]:
    """`(N,)` masks of the scores alone, without noise, at the start and after even spans."""
    config = job.config
    model = load_checked(job.source.directory, job.device, config.dtype)
    freeze(model)
    text = CalibrationText(job.blocks.train, config.batch_size, seed=config.seed)
    state, steps = learning(model, job.budget, text, noisy=noisy)

    def mask() -> Tensor:
        return project(torch.sigmoid(state.values.detach() / TEMPERATURE), job.budget).cpu()

    masks = [mask()]
    for step in steps:
        on_progress({"stage": "gates", "step": step.step, "steps": step.steps})
        if step.step % max(1, step.steps // SNAPSHOTS) == 0:
            masks.append(mask())
    return masks


def survival(masks: list[Tensor], chosen: Tensor) -> list[float]:
    """Share of the chosen units whose state is the same in a snapshot and in the next."""
    return [
        float((before == after)[chosen].float().mean())
        for before, after in itertools.pairwise(masks)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    add_study_options(parser, keep="0.5", evaluates=False)
    options = output.parsed(parser, arguments, "mask-stability")
    (keep, *others), (seed, *seeds) = keeps_and_seeds(options)
    if others or seeds:
        raise InputError("masks are watched under one budget and one seed: name one of each")
    with output.working_folder("mask-stability") as (folder, on_progress):
        settings = {**settings_of(options, folder), "keep": keep, "seed": seed}
        if writes_own(settings["calibration"]):
            raise InputError("masks are watched on a given text: leave self out of --calibration")
        record = output.new_record("mask-stability", arguments, settings)
        job, found = prepare(CompressConfig(**settings)), Stability([])
        is_kv = job.budget.units.is_kv
        for name, noisy in WAYS.items():
            masks = masks_while_learning(noisy, job, on_progress)
            found.rows.append(Survival(name, survival(masks, ~is_kv), survival(masks, is_kv)))
            output.write(options.output, {**record, **to_builtins(found)})
    stdout.print(stability_table(found))


if __name__ == "__main__":
    output.run_command(main)
