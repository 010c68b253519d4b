r"""Cost and benefit in quality of each choice in the method.

One study at a time: every variant is compressed under the same budgets and measured on the same
held-out text. The record is written after each row. A record of the same study, settings, texts,
releases and machine is continued: what it has is not measured twice. Nor is what such a record of
another study, named with --known, has under the same options. Draw records with
`python -m benchmarks.report`.

    python -m benchmarks.quality methods --model ../shared/models/ref-llama-7m \
        --calibration ../shared/data/c4/c4_sample.jsonl --calibration-split 'train[:900]' \
        --evaluate wikitext2=../shared/data/wikitext-2/wiki.test.raw \
        --evaluate 'c4=../shared/data/c4/c4_sample.jsonl@train[900:]' --seeds 0,1,2
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from benchmarks.common import output
from benchmarks.common.models import calibration_hashes
from benchmarks.study.bench import Bench, Variant
from benchmarks.study.options import add_study_options, corpora_of, keeps_and_seeds, settings_of
from benchmarks.study.record import new_study
from benchmarks.study.rows import by_key, check_title, continue_earlier, key_of, rows_of_others
from benchmarks.study.tables import accuracy_tables, quality_tables
from benchmarks.study.tasks import accuracies, add_task_options, recorded, task_settings_of
from grasp_deploy.cli.console import stdout
from grasp_deploy.errors import InputError

BASELINES = "benchmarks.baselines"
# The paper's own recipe: equal scores, single channels, the last mask, no least squares.
PAPER: dict[str, Any] = {
    "method": f"{BASELINES}.grasprune:paper",
    "compensation": False,
    "norm_scales": False,
    "objective": "text",
    "ffn_multiple": 1,
}
SMOKE_VARIANTS = 3
MASK_ALONE: dict[str, Any] = {"compensation": False, "scale_epochs": 0}
ONE_SHOT = (
    *("random", "magnitude", "taylor-vector", "taylor-element", "taylor-gate"),
    *("flap", "wanda-structured", "obs"),
)


def baseline(module: str, name: str, **options: Any) -> dict[str, Any]:
    """The options of a baseline by the name of its variant."""
    return {"method": f"{BASELINES}.{module}:{name.replace('-', '_')}", **options}


RECOVERED = {"recover": 1_000_000}
TAYLOR_RECOVERED = Variant(  # LLM-Pruner's two steps
    "taylor-element, recovered", baseline("one_shot", "taylor-element", **MASK_ALONE, **RECOVERED)
)
STUDIES: dict[str, list[Variant]] = {
    "methods": [
        Variant("default"),
        Variant("rounds alone", {"method": "progressive"}),
        Variant("paper", PAPER),
        Variant("gumbel-topk", PAPER | baseline("grasprune", "gumbel-topk")),
        *(Variant(name, baseline("one_shot", name, **MASK_ALONE)) for name in ONE_SHOT),
        *(
            Variant(f"{name}, compensated", baseline("one_shot", name, scale_epochs=0))
            for name in ("taylor-element", "flap", "wanda-structured", "obs")
        ),
        # Of ours it differs in the mask alone.
        Variant("taylor-element, compensated, scaled", baseline("one_shot", "taylor-element")),
        Variant("flap with its bias", baseline("one_shot", "flap", **MASK_ALONE), bias=True),
        TAYLOR_RECOVERED,
    ],
    "stages": [  # one switched off, or turned, at a time
        Variant("default"),
        Variant("every width", {"ffn_multiple": 1}),
        Variant("one round", {"rounds": 1}),
        Variant("rounds alone", {"method": "progressive"}),
        Variant("no scales", {"scale_epochs": 0}),
        Variant("no scales of norms", {"norm_scales": False}),
        Variant("gates and scales that learn the text", {"objective": "text"}),
        Variant("no refits, no scales", MASK_ALONE),
        Variant("three rounds", {"rounds": 3}),
        Variant("a tenth of the ridge", {"ridge": 1.6}),
        Variant("ten times the ridge", {"ridge": 160.0}),
        Variant("no refit", {"compensation": False}),
        Variant("eight rounds", {"rounds": 8}),
        Variant("128 channels at once", {"ffn_multiple": 128}),
    ],
    "ranking": [
        Variant("score, paper", PAPER),
        Variant("score-per-cost, paper", PAPER | baseline("grasprune", "paper-per-cost")),
    ],
    "own": [
        Variant("the text alone, scales of units alone", {"norm_scales": False}),
        Variant("the text alone"),
        Variant("own text alone", own="all"),
        Variant("the text and own text", own="half"),
    ],
    "scales": [
        Variant("paper with scales", PAPER),
        Variant("paper without scales", {**PAPER, "scale_epochs": 0}),
    ],
    "targets": [Variant(targets, {"targets": targets}) for targets in ("both", "ffn", "kv")],
    "recovery": [  # what must come before it
        Variant("default"),
        Variant("default, recovered", RECOVERED),
        Variant("rounds alone, recovered", {"method": "progressive", **RECOVERED}),
        TAYLOR_RECOVERED,
    ],
    "experts": [  # of a model that has them; nothing is refitted or scaled
        Variant(name, {"method": method, "targets": "ffn", **MASK_ALONE})
        for name, method in (
            ("uniform, REAP's score", f"{BASELINES}.shares:reap_uniform"),
            ("one ranking, REAP's score", f"{BASELINES}.reap:reap"),
            ("one ranking, in rounds", "progressive"),
            ("one ranking, learnt gates", "grasp"),
        )
    ],
}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = output.new_parser(__doc__)
    parser.add_argument("study", choices=STUDIES)
    add_study_options(parser, keep="0.8,0.6,0.5,0.4")
    add_task_options(parser)
    parser.add_argument("--variants", help="only these, separated by semicolons")
    parser.add_argument(
        "--known",
        type=Path,
        action="append",
        default=[],
        metavar="RECORD",
        help="of another study: rows of the same options are taken from it; repeat",
    )
    options = output.parsed(parser, arguments, "study")
    check_title(options.output, options.study)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    variants = [v.in_brief() if options.smoke else v for v in STUDIES[options.study]]
    chosen = chosen_variants(variants, options)
    keeps, seeds = keeps_and_seeds(options)
    tasks = task_settings_of(options)
    with output.working_folder("quality") as (folder, on_progress):
        settings = settings_of(options, folder)
        bench = Bench(options, corpora_of(options, folder), tasks)
        # The embedded model's text lies elsewhere each run.
        named = ", ".join(options.calibration or ["the embedded model's"])
        calibration = {"calibration": named, "calibration_hashes": calibration_hashes(settings)}
        study = new_study(
            options.study,
            output.command_of("quality", arguments),
            {**settings, **calibration, **recorded(tasks)},
            bench.dense,
            bench.dense_layers,
        )
        row_options = {v.name: v.recorded_options(settings) for v in variants}
        continue_earlier(options.output, study, row_options)
        if tasks and study.dense_tasks is UNSET:
            found = accuracies(options.model, tasks, on_progress)
            study.dense_tasks, study.dense_task_average = found
            output.write(options.output, study.as_record())
        measured = {row.run for row in study.rows}
        known = rows_of_others(options.known, study)
        for row in study.rows:
            known |= by_key(row)
        for seed, keep, variant in itertools.product(seeds, keeps, chosen):
            if (variant.name, keep, seed) in measured:
                continue
            row = known.get(key_of(row_options[variant.name], keep, seed)) or bench.measure(
                variant, settings, keep, seed, on_progress
            )
            known |= by_key(row)
            study.rows.append(replace(row, variant=variant.name))
            output.write(options.output, study.as_record())
    stdout.print(*quality_tables(study), *accuracy_tables(study))


def chosen_variants(variants: list[Variant], options: argparse.Namespace) -> list[Variant]:
    """The variants to be measured, in the order named; InputError for those not of the study."""
    if options.variants:
        wanted, named = options.variants.split(";"), {variant.name: variant for variant in variants}
        if unknown := set(wanted) - set(named):
            raise InputError(
                f"--variants {';'.join(sorted(unknown))} is not in the study {options.study}: "
                f"choose from {';'.join(named)}"
            )
        variants = [named[name] for name in dict.fromkeys(wanted)]
    return variants[: SMOKE_VARIANTS if options.smoke else None]


if __name__ == "__main__":
    output.run_command(main)
