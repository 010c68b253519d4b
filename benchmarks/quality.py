r"""What does each choice in the method cost or win in quality?

One study at a time: every variant is compressed under the same budgets and measured on the same
held-out text. The record is written anew after each, and a record of the same study, settings and
text that is there already is taken up again: what it holds is not measured twice, nor what a record
of another study has under the same options, if it is named with --known. Draw a record with
`grasp-deploy report`.

    python benchmarks/quality.py methods --model ../shared/models/ref-llama-7m \
        --calibration ../shared/data/c4/c4_sample.jsonl --calibration-split 'train[:900]' \
        --evaluate wikitext2=../shared/data/wikitext-2/wiki.test.raw \
        --evaluate 'c4=../shared/data/c4/c4_sample.jsonl@train[900:]' --seeds 0,1,2
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ending import run, write
from rich.console import Console
from study_options import add_options, corpora_of, keeps_and_seeds, settings_of
from study_rows import by_options, check_study, key, rows_of_others, rows_so_far
from variant_tasks import add_task_options, average_of, tasks_of, told
from variants import Bench, Variant

from grasp_deploy.config.compress_config import CRITERIA
from grasp_deploy.errors import InputError
from grasp_deploy.files.record import new_record
from grasp_deploy.files.record_output import check_place
from grasp_deploy.healing.heal import check_installed
from grasp_deploy.report.progress import stage_bars
from grasp_deploy.report.study_tables import quality_tables
from grasp_deploy.report.study_task_tables import accuracy_tables

# The paper's own recipe: equal scores, the last mask, no least squares.
PAPER: dict[str, Any] = {
    "method": "grasp",
    "start": "equal",
    "select": "last",
    "learning_rate_schedule": "constant",
    "epochs": 4,
    "compensation": False,
}
SMOKE_VARIANTS = 3
MASK_ALONE: dict[str, Any] = {"compensation": False, "scale_epochs": 0}

STUDIES: dict[str, list[Variant]] = {
    "methods": [
        Variant("default"),
        Variant("learnt gates", {"method": "grasp"}),
        Variant("paper", PAPER),
        Variant("gumbel-topk", {**PAPER, "method": "gumbel-topk"}),
        *(Variant(name, {"method": name, **MASK_ALONE}) for name in CRITERIA),
        *(
            Variant(f"{name}, compensated", {"method": name, "scale_epochs": 0})
            for name in ("taylor-element", "flap", "wanda-structured", "obs")
        ),
    ],
    "additions": [
        Variant("default"),
        *(Variant(f"{count} rounds", {"rounds": count}) for count in (1, 3, 10)),
        *(
            Variant(f"rounds by {name}", {"round_criterion": name})
            for name in ("taylor-element", "flap", "wanda-structured")
        ),
        Variant("gates behind the rounds", {"method": "grasp"}),
        *(
            Variant(f"gates from {start}", {"method": "grasp", "start": start})
            for start in ("equal", "obs")
        ),
        *(
            Variant(name, {"method": "grasp", "start": "equal", **options})
            for name, options in (
                ("gates, four epochs", {"epochs": 4}),
                ("gates, constant rate", {"learning_rate_schedule": "constant"}),
                ("gates, last mask", {"select": "last"}),
                ("gates, distilled", {"objective": "distillation"}),
                ("gates on keys and values", {"gate_site": "keys-values"}),
                ("gates, averaged", {"select": "average", "learning_rate_schedule": "constant"}),
                ("gates, swaps", {"swap_groups": 4}),
                ("gates, batches of 4", {"batch_size": 4, "epochs": 4, "scale_epochs": 4}),
            )
        ),
        Variant("no compensation", {"compensation": False}),
        Variant("no scales", {"scale_epochs": 0}),
        Variant("mask alone", MASK_ALONE),
    ],
    "ranking": [
        Variant(f"{ranking}{', paper' if options else ''}", {"ranking": ranking, **options})
        for options in (PAPER, {})
        for ranking in ("score", "score-per-cost")
    ],
    "scales": [
        Variant("paper with scales", PAPER),
        Variant("paper without scales", {**PAPER, "scale_epochs": 0}),
    ],
    "targets": [Variant(targets, {"targets": targets}) for targets in ("both", "ffn", "kv")],
    "kv-cost": [
        Variant(f"KV cost x {factor:g}", {"kv_cost_factor": factor})
        for factor in (0.25, 0.5, 1.0, 2.0, 4.0)
    ],
    "healing": [Variant("default"), Variant("default, healed", healing={"minutes": 10.0})],
    "allocation": [
        Variant(
            f"{method}, {allocation}", {"method": method, "allocation": allocation, **MASK_ALONE}
        )
        for method in ("taylor-element", "wanda-structured", "flap", "magnitude")
        for allocation in ("global", "layerwise", "owl")
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    add_options(parser)
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
    options = parser.parse_args()
    check_place(options.output, "study")
    check_study(options.output, options.study)
    study = [one.in_brief() if options.smoke else one for one in STUDIES[options.study]]
    chosen = _chosen(study, options)
    keeps, seeds = keeps_and_seeds(options)
    command = ["python", "benchmarks/quality.py", *sys.argv[1:]]
    tasks = tasks_of(options)
    with (
        tempfile.TemporaryDirectory(prefix="quality-") as folder,
        stage_bars(Console(stderr=True)) as on_progress,
    ):
        settings = settings_of(options, Path(folder))
        bench = Bench(options, corpora_of(options, Path(folder)), tasks, on_progress)
        record = new_record(
            "study", command, {**_named(settings, options), **told(tasks)}, study=options.study
        )
        record |= {"dense_perplexity": bench.dense, "dense_layers": bench.dense_layers}
        _note_tasks(record, bench)
        made_with = {one.name: one.made_with(settings) for one in study}
        record["rows"] = rows_so_far(options.output, record, made_with)
        there = {(row["variant"], row["keep"], row["seed"]) for row in record["rows"]}
        known = rows_of_others(options.known, record)
        for row in record["rows"]:
            known |= by_options(row)
        for seed, keep, variant in itertools.product(seeds, keeps, chosen):
            if (variant.name, keep, seed) in there:
                continue
            row = known.get((key(made_with[variant.name]), keep, seed))
            row = row or bench.measure(variant, settings, keep, seed, on_progress)
            known |= by_options(row)
            record["rows"].append({**row, "variant": variant.name})
            write(options.output, record)
    Console().print(*quality_tables(record), *accuracy_tables(record))


def _chosen(study: list[Variant], options: argparse.Namespace) -> list[Variant]:
    """What is to be measured of a study; InputError for variants that it does not have."""
    chosen = study
    if options.variants:
        wanted, names = options.variants.split(";"), [one.name for one in study]
        if unknown := set(wanted) - set(names):
            raise InputError(
                f"--variants {';'.join(sorted(unknown))} is no variant of {options.study}: "
                f"choose of {';'.join(names)}"
            )
        chosen = [one for one in study if one.name in wanted]
    chosen = chosen[: SMOKE_VARIANTS if options.smoke else None]
    if any(one.healing for one in chosen):
        check_installed()
    return chosen


def _named(settings: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Settings as a record names them: the demo's own text lies elsewhere in every run."""
    return {**settings, "calibration": options.calibration or "the embedded model's"}


def _note_tasks(record: dict[str, Any], bench: Bench) -> None:
    """What the dense model reaches on tasks, where there are any, and by which release."""
    if bench.dense_tasks:
        record["versions"]["lm_eval"] = version("lm_eval")
        record["dense_tasks"] = bench.dense_tasks
        record["dense_task_average"] = average_of(bench.dense_tasks)


if __name__ == "__main__":
    run(main)
