"""How much does the mask still change while gates are learnt?

The share of units whose state survives from one snapshot to the next, FFN channels and KV groups
apart: the projected straight-through gates against the paper's Gumbel-TopK, and against gates that
start behind a cut in rounds, with a falling learning rate. All see the same blocks in the same
order. `grasp-deploy report` draws the record again.

    python benchmarks/mask_stability.py --model ../shared/models/ref-llama-7m --keep 0.5 \
        --calibration ../shared/data/c4/c4_sample.jsonl --calibration-split 'train[:900]'
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

from ending import run, write
from grasp_deploy.compression.stages import Stages
from quality import PAPER
from rich.console import Console
from study_options import add_options, keeps_and_seeds, settings_of
from torch import Tensor

from grasp_deploy.checkpoint.read.loading import load_checked
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import new_record
from grasp_deploy.files.record_output import check_place
from grasp_deploy.pruning.training import freeze
from grasp_deploy.report.progress import stage_bars
from grasp_deploy.report.stability_tables import stability_table

WAYS: dict[str, dict[str, Any]] = {
    "projected straight-through": PAPER,
    "Gumbel-TopK": {**PAPER, "method": "gumbel-topk"},
    "straight-through behind rounds": {"method": "grasp"},
}
SNAPSHOTS = 32


def masks_while_learning(job: PreparedRun, work: Path, on_progress: OnProgress) -> list[Tensor]:
    """`(N,)` masks of the scores alone, without noise, at the start and after even spans."""
    model = load_checked(job.source.directory, job.device, job.config.dtype, job.config.attention)
    freeze(model)
    masks: list[Tensor] = []
    with Workspace.open(
        work / "run", job.config, job.inputs, resume=False, overwrite=True
    ) as workspace:
        stages = Stages(FrozenModel(job, model, workspace, on_progress))
        every = max(1, job.gate_schedule.steps(job.blocks) // SNAPSHOTS)

        def look(step: int, scores: Tensor) -> None:
            if step % every == 0:
                masks.append(stages.ranking(scores).mask.cpu())

        stages.scores(look)
    return masks


def survival(masks: list[Tensor], chosen: Tensor) -> list[float]:
    """Share of the chosen units whose state is the same in a snapshot and in the next."""
    return [
        float((one == other)[chosen].float().mean()) for one, other in itertools.pairwise(masks)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.set_defaults(keep="0.5")
    options = parser.parse_args()
    check_place(options.output, "mask-stability")
    (keep, *others), (seed, *seeds) = keeps_and_seeds(options)
    if others or seeds:
        raise InputError("masks are watched under one budget and one seed: name one of each")
    command = ["python", "benchmarks/mask_stability.py", *sys.argv[1:]]
    with (
        tempfile.TemporaryDirectory(prefix="mask-stability-") as folder,
        stage_bars(Console(stderr=True)) as on_progress,
    ):
        settings = {**settings_of(options, Path(folder)), "keep": keep, "seed": seed}
        record = new_record("mask-stability", command, settings)
        record["rows"] = []
        for name, way in WAYS.items():
            job = prepare(CompressConfig(**{**settings, **way}))
            masks = masks_while_learning(job, Path(folder), on_progress)
            kv = job.budget.units.is_kv
            row = {"ffn_survival": survival(masks, ~kv), "kv_survival": survival(masks, kv)}
            record["rows"].append({"variant": name, **row})
            write(options.output, record)
    Console().print(stability_table(record))


if __name__ == "__main__":
    run(main)
