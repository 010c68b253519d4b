"""Choice of the text that masks are chosen on, and of the text that scales are learnt on.

Each text chooses a mask (the compensation reads the same text), and each then calibrates the scales
of each of those masks. All are measured on the same held-out text, by the gates on the uncut model,
which give the same logits as the cut one. Draw the record again with `python -m benchmarks.report`.

    python -m benchmarks.calibration --model ../shared/models/ref-llama-7m --keep 0.5 \
        --text 'c4=../shared/data/c4/c4_sample.jsonl@train[:900]' \
        --text wikitext2=../shared/data/wikitext-2/wiki.valid.tokens \
        --evaluate wikitext2=../shared/data/wikitext-2/wiki.test.raw \
        --evaluate 'c4=../shared/data/c4/c4_sample.jsonl@train[900:]'
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from benchmarks.common import output
from benchmarks.common.models import alone, demo_texts
from benchmarks.study.bench import Bench
from benchmarks.study.options import (
    add_study_options,
    corpora_of,
    keeps_and_seeds,
    parse_texts,
    settings_of,
)
from benchmarks.study.record import Row, new_study
from benchmarks.study.tables import quality_tables
from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.read.loading import load_checked
from grasp_deploy.cli.console import stdout
from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.mask import final_mask, learn_scales, refit
from grasp_deploy.compression.objective import Objective
from grasp_deploy.compression.own_text import with_own_text
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.compression.result import budget_record
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.compression.scores import initial_scores, learn_gates
from grasp_deploy.compression.stages import Stages
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import OnProgress


def rows_of(
    jobs: Mapping[str, PreparedRun], chooser: str, bench: Bench, work: Path, on_progress: OnProgress
) -> Iterator[Row]:
    """A row for each text that the scales of one text's mask are learnt on."""
    job = jobs[chooser]
    model = load_checked(job.source.directory, job.device, job.computed_in)
    with new_workspace(job, work) as workspace:
        choosing = Stages(workspace, job.budget.units, on_progress)
        job = with_own_text(job, lambda: model, choosing)
        chosen = FrozenModel(job, model)
        initial, reached = initial_scores(chosen, choosing)
        learning = chosen, choosing, Objective(chosen, choosing)
        scores = learn_gates(*learning, initial, reached)
        mask = final_mask(chosen, scores, reached)
        refit(*learning, mask)
    for calibrator, other in jobs.items():
        with new_workspace(job, work) as workspace:
            stages = Stages(workspace, job.budget.units, on_progress)
            calibration = with_own_text(replace(job, text=other.text), lambda: model, stages)
            calibrated = FrozenModel(calibration, model)
            calibrated.outputs = chosen.outputs  # which have the dense model's own weights
            objective = Objective(calibrated, stages)
            scales, norms = learn_scales(calibrated, stages, objective, mask)
            provenance = {
                "dense_layers": bench.dense_layers,
                "budget": budget_record(job.budget, mask),
            }
            plan = Plan(scores.cpu(), mask.cpu(), scales.cpu(), provenance)
            row = bench.row(f"mask: {chooser}, scales: {calibrator}", job.config, plan)
            with calibrated.gated(mask * scales, norms):
                bench.set_losses(row, model)
            row.heldout_loss = {"heldout_pruned": calibrated.heldout_loss(mask * scales, norms)}
        row.seconds = {**choosing.seconds, **stages.seconds}
        yield row


def new_workspace(job: PreparedRun, work: Path) -> AbstractContextManager[Workspace]:
    """An empty workspace of a run."""
    return Workspace.open(RunOptions(work / "run", overwrite=True), job)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    add_study_options(parser, keep="0.5")
    parser.add_argument("--text", action="append", metavar="[NAME=]SOURCE[@SPLIT]", help="repeat")
    options = output.parsed(parser, arguments, "study")
    if options.output is not None and options.output.exists():
        raise InputError(f"{options.output} exists: name another file as --output, or remove it")
    if options.calibration or options.calibration_split:
        raise InputError("this study takes its texts and their splits by --text: name them there")
    with output.working_folder("calibration") as (folder, on_progress):
        named = options.text or [f"the text={demo_texts(folder)[0]}"]
        texts = parse_texts("--text", named, evaluates=False)
        options.calibration = [texts[0].what]  # so that no other text is made
        settings = settings_of(options, folder)
        bench = Bench(options, corpora_of(options, folder))
        shared = {k: v for k, v in settings.items() if not k.startswith("calibration")}
        study = new_study(
            "calibration text",
            output.command_of("calibration", arguments),
            {**shared, "texts": options.text or ["the embedded model's"]},
            bench.dense,
            bench.dense_layers,
        )
        for keep, seed in itertools.product(*keeps_and_seeds(options)):
            config = CompressConfig(**{**settings, "keep": keep, "seed": seed})
            jobs = {
                text.label: prepare(
                    replace(
                        config,
                        calibration=alone([text.what]),
                        calibration_split=text.split,
                    )
                )
                for text in texts
            }
            for chooser in jobs:
                for row in rows_of(jobs, chooser, bench, folder, on_progress):
                    study.rows.append(row)
                    output.write(options.output, study.as_record())
    stdout.print(*quality_tables(study))


if __name__ == "__main__":
    output.run_command(main)
