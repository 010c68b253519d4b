"""Which text should masks be chosen on, and which text should scales be learnt on?

Each text chooses a mask (the compensation reads the same text), and each then calibrates the scales
of each of those masks. All are measured on the same held-out text, by the gates on the uncut model,
which give the same logits as the cut one. The record is that of a study: `grasp-deploy report`. One
that is there already is gone on with.

    python benchmarks/calibration.py --model ../shared/models/ref-llama-7m --keep 0.5 \
        --text 'c4=../shared/data/c4/c4_sample.jsonl@train[:900]' \
        --text wikitext2=../shared/data/wikitext-2/wiki.valid.tokens \
        --evaluate wikitext2=../shared/data/wikitext-2/wiki.test.raw \
        --evaluate 'c4=../shared/data/c4/c4_sample.jsonl@train[900:]'
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ending import run, write
from grasp_deploy.compression.stages import Stages
from quality import PAPER
from rich.console import Console
from study_options import add_options, corpora_of, keeps_and_seeds, parsed, settings_of
from study_rows import check_study, rows_so_far
from variants import Bench, options_of

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.read.loading import load_checked
from grasp_deploy.cli.bench.output import check_place
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.compression.provenance import budget_record
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import TextSource
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import new_record
from grasp_deploy.pruning.training import freeze
from grasp_deploy.report.progress import stage_bars
from grasp_deploy.report.study_tables import quality_tables

WAYS: dict[str, dict[str, Any]] = {"default": {}, "paper": PAPER}


def rows_of(
    jobs: dict[str, PreparedRun],
    chooser: str,
    calibrators: Sequence[str],
    bench: Bench,
    work: Path,
    on_progress: OnProgress,
) -> Iterator[dict[str, Any]]:
    """A row of the study for each text that the scales of one text's mask are learnt on."""
    if not calibrators:
        return
    job = jobs[chooser]
    model = load_checked(job.source.directory, job.device, "float32", job.config.attention)
    freeze(model)
    with workspace_of(job, work) as workspace:
        chosen = Stages(FrozenModel(job, model, workspace, on_progress))
        scores, (mask, *_) = chosen.scores()
        if job.config.compensation:
            mask, _ = chosen.compensation([mask])
    for calibrator in calibrators:
        with workspace_of(job, work) as workspace:
            subject = FrozenModel(
                replace(job, text=jobs[calibrator].text), model, workspace, on_progress
            )
            calibrated = Stages(subject)
            scales = calibrated.scales(mask)
            with subject.gated(mask * scales):
                found = bench.perplexities_of(model)
            losses = {"heldout_pruned": subject.heldout_loss(mask * scales)}
        provenance = {
            "dense_layers": bench.dense_layers,
            "budget": budget_record(job.budget, mask),
        }
        plan = Plan(scores.cpu(), mask.cpu(), scales.cpu(), provenance, None)
        yield {
            "variant": _named(chooser, calibrator),
            "options": options_of(job.config),
            **bench.row(job.config, plan, found),
            "heldout_loss": losses,
            "seconds": {**chosen.seconds, **calibrated.seconds},
        }


def _named(chooser: str, calibrator: str) -> str:
    return f"mask: {chooser}, scales: {calibrator}"


def workspace_of(job: PreparedRun, work: Path) -> AbstractContextManager[Workspace]:
    """An empty one."""
    return Workspace.open(work / "run", job.config, job.inputs, resume=False, overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--text", action="append", metavar="[NAME=]TEXT[@SPLIT]", help="repeat")
    parser.add_argument("--way", choices=WAYS, default="default")
    parser.set_defaults(keep="0.5")
    options = parser.parse_args()
    study = f"calibration text, {options.way}"
    check_place(options.output, "study")
    check_study(options.output, study)
    command = ["python", "benchmarks/calibration.py", *sys.argv[1:]]
    with (
        tempfile.TemporaryDirectory(prefix="calibration-") as folder,
        stage_bars(Console(stderr=True)) as on_progress,
    ):
        settings = {**settings_of(options, Path(folder)), **WAYS[options.way]}
        texts = texts_of(options, settings)
        bench = Bench(options, corpora_of(options, Path(folder)))
        one_text = ("calibration", "calibration_split")
        told = {name: value for name, value in settings.items() if name not in one_text}
        told |= {"way": options.way, "texts": options.text or named_text(options)}
        record = new_record("study", command, told, study=study)
        record |= {"dense_perplexity": bench.dense, "dense_layers": bench.dense_layers}
        record["rows"] = rows_so_far(options.output, record, {})
        there = {(row["variant"], row["keep"], row["seed"]) for row in record["rows"]}
        for keep, seed in itertools.product(*keeps_and_seeds(options)):
            jobs = {text.label: prepared(settings, text, keep, seed) for text in texts}
            for chooser in jobs:
                left = [text for text in jobs if (_named(chooser, text), keep, seed) not in there]
                for row in rows_of(jobs, chooser, left, bench, Path(folder), on_progress):
                    record["rows"].append(row)
                    write(options.output, record)
    Console().print(*quality_tables(record))


def named_text(options: argparse.Namespace) -> list[str]:
    """The one text where no --text names more; the demo's own lies elsewhere in every run."""
    split = f"@{options.calibration_split}" if options.calibration_split else ""
    return [f"the text={options.calibration or 'the embedded model'}{split}"]


def texts_of(options: argparse.Namespace, settings: dict[str, Any]) -> list[TextSource]:
    """What to calibrate on: texts by name, or the one that other studies take too."""
    texts = parsed("--text", options.text or (), evaluates=False)
    if texts and options.calibration:
        raise InputError("--text names the texts, --calibration one more: give only --text")
    (text,) = settings["calibration"]
    alone = TextSource(text, settings["calibration_split"], name="the text")
    return texts or [alone]


def prepared(settings: dict[str, Any], text: TextSource, keep: float, seed: int) -> PreparedRun:
    of_text = {"calibration": [text.what], "calibration_split": text.split}
    return prepare(CompressConfig(**{**settings, **of_text, "keep": keep, "seed": seed}))


if __name__ == "__main__":
    run(main)
