"""What does each choice in the method cost or win in quality?

One study at a time: every variant is compressed under the same budgets and measured on the same
held-out text. The record is written anew after each, and a record that is there already is taken up
again: what it holds is not measured twice.

    python benchmarks/quality.py methods --model ../shared/models/ref-llama-7m \
        --calibration ../shared/data/c4/c4_sample.jsonl --calibration-split 'train[:900]' \
        --evaluate wikitext2=../shared/data/wikitext-2/wiki.test.raw \
        --evaluate 'c4=../shared/data/c4/c4_sample.jsonl@train[900:]' --seeds 0,1,2
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from variants import Bench, Variant, add_options, corpora_of, settings_of

from grasp_deploy.config import CRITERIA
from grasp_deploy.errors import InputError
from grasp_deploy.record import new_record, write_record
from grasp_deploy.report.progress import stage_bars

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
        *(Variant(f"{count} rounds", {"rounds": count}) for count in (1, 5, 20)),
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
    "allocation": [
        Variant(
            f"{method}, {allocation}", {"method": method, "allocation": allocation, **MASK_ALONE}
        )
        for method in ("taylor-element", "wanda-structured", "flap", "magnitude")
        for allocation in ("global", "layerwise", "owl")
    ],
}


def quality_table(record: dict[str, Any]) -> Table:
    """Perplexity by variant and budget, the mean over seeds with half their range."""
    corpora = list(record["dense_perplexity"])
    keeps = sorted({row["keep"] for row in record["rows"]}, reverse=True)
    table = Table("variant", title=record["benchmark"], title_justify="left")
    for keep in keeps:
        for corpus in corpora:
            table.add_column(f"{keep:g} {corpus}", justify="right")
    dense = record["dense_perplexity"]
    table.add_row("dense", *(f"{dense[corpus]:.1f}" for _ in keeps for corpus in corpora))
    for name in dict.fromkeys(row["variant"] for row in record["rows"]):
        cells = []
        for keep in keeps:
            rows = [r for r in record["rows"] if (r["variant"], r["keep"]) == (name, keep)]
            cells += [_cell([r["perplexity"][corpus] for r in rows]) for corpus in corpora]
        table.add_row(name, *cells)
    return table


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ±{(max(values) - min(values)) / 2:.1f}" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.1f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    add_options(parser)
    parser.add_argument("--variants", help="only these, separated by semicolons")
    options = parser.parse_args()
    chosen = STUDIES[options.study][: SMOKE_VARIANTS if options.smoke else None]
    if options.variants:
        wanted = options.variants.split(";")
        chosen = [variant for variant in chosen if variant.name in wanted]
    keeps, seeds = ([*map(kind, text.split(","))] for kind, text in _numbers(options))
    command = ["python", "benchmarks/quality.py", *sys.argv[1:]]
    with (
        tempfile.TemporaryDirectory(prefix="quality-") as folder,
        stage_bars(Console(stderr=True)) as watch,
    ):
        settings = settings_of(options, Path(folder))
        bench = Bench(options, corpora_of(options, Path(folder)))
        record = new_record(f"quality-{options.study}", command, settings)
        record["dense_perplexity"], record["rows"] = bench.dense, _measured(options.output)
        there = {(row["variant"], row["keep"], row["seed"]) for row in record["rows"]}
        for seed, keep, variant in itertools.product(seeds, keeps, chosen):
            if (variant.name, keep, seed) in there:
                continue
            record["rows"].append(bench.measure(variant, settings, keep, seed, watch))
            if options.output:
                write_record(options.output, record)
    Console().print(quality_table(record))


def _numbers(options: argparse.Namespace) -> list[tuple[type, str]]:
    return [(float, "0.6" if options.smoke else options.keep), (int, options.seeds)]


def _measured(output: Path | None) -> list[dict[str, Any]]:
    """Rows of a record that an earlier run left."""
    if output is None or not output.exists():
        return []
    return json.loads(output.read_text())["rows"]


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
