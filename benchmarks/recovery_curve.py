"""What recovery wins back of pruned checkpoints, by tokens, tokens a step and learning rate.

Each number of tokens is a run of its own, whose learning rate falls to 0 at its end. Kinds of text
and tasks are those of `benchmarks.quality`. The record is written after each run, and a record of
the same settings, releases and machine is continued. Runs of one process share what the dense model
writes.

    python -m benchmarks.recovery_curve run smaller-0.8 smaller-0.6 --tokens 0,250000,1000000 \
        --model build/models/smollm2-135m --evaluate wikitext2=wiki.test.raw --output curve.json
    python -m benchmarks.recovery_curve draw curve.json --png curve.png
"""

import argparse
import itertools
import math
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

from msgspec import Meta, Struct, to_builtins
from rich.table import Table

from benchmarks.common import output
from benchmarks.study.bench import Bench, loaded
from benchmarks.study.options import corpora_of
from benchmarks.study.own_text import shared_own_text
from benchmarks.study.record import Accuracy, Perplexities
from benchmarks.study.rows import changed, joined, other_run, other_text
from benchmarks.study.tasks import accuracies, add_task_options, recorded, task_settings_of
from grasp_deploy.checkpoint.card.model_card import intact_plan
from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.cli.console import stdout
from grasp_deploy.cli.heal import FROM_PLAN, OF_TEXTS
from grasp_deploy.compression import recovery, recovery_text
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.run_options import RunOptions, Start
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import number_list
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sha256
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import read_record
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import percent

REMEDY = "name a record that `benchmarks.recovery_curve run` wrote"
NOTHING_WON = "recovery won nothing"
Count = Annotated[int, Meta(ge=1)]


class Row(Struct):
    """A checkpoint, as pruned (0 tokens) or recovered; what was read only where that won."""

    checkpoint: str
    tokens: Annotated[int, Meta(ge=0)]
    excess_nats: Annotated[dict[str, float], Meta(min_length=1)]
    tokens_a_step: Count | None = None
    rate: float | None = None
    read: Count | None = None
    seconds: Annotated[float, Meta(gt=0)] | None = None
    divergences: list[float] = []
    task_average: Accuracy | None = None

    def __post_init__(self) -> None:
        if self.tokens and None in (self.tokens_a_step, self.rate):
            raise ValueError("a recovery has no tokens_a_step or rate")
        if self.read and (self.seconds is None or len(self.divergences) < 2):
            raise ValueError("what was read has no seconds, or not two divergences")


class Curve(Struct):
    """The record."""

    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    dense_perplexity: Perplexities
    rows: Annotated[list[Row], Meta(min_length=1)]


def recovered(
    options: argparse.Namespace, folder: Path, tokens: int, made: Path, on_progress: OnProgress
) -> tuple[Path, dict[str, Any]]:
    """The folder to measure, and of a recovery into `made` its divergences, steps and seconds.

    The folder is the checkpoint itself if nothing was won.
    """
    plan = intact_plan(folder)
    told = plan.provenance["config"]
    stored = {name: told[name] for name in (*OF_TEXTS, *FROM_PLAN) if name in told}
    given: dict[str, Any] = {"model": str(options.model), "keep": 1.0, "recover": tokens}
    config = CompressConfig.from_dict({**stored, **given}, "the plan")
    divergences: list[float] = []

    def follow(row: dict[str, Any]) -> None:
        if "heldout_divergence" in row:
            divergences.append(row["heldout_divergence"])
        on_progress(row)

    out = RunOptions(made, overwrite=True, on_progress=follow)
    pace = {"TOKENS_A_STEP": options.tokens_a_step, "RATE": options.rate}
    share = partial(shared_own_text, options.own_text)
    with (
        patch.multiple(recovery, **pace),
        patch.object(recovery_text, "with_own_text", share),
        patch(f"{compress.__module__}.with_own_text", share),
    ):
        step = recovery.sequences_in_step(config) * config.sequence_length
        if step != (wanted := options.tokens_a_step):
            raise InputError(
                f"--tokens-a-step {wanted} is not what a step from {folder} reads: give {step}"
            )
        try:
            healed = compress(config, out, Start(checkpoint=folder)).plan
        except InputError as error:
            if NOTHING_WON not in str(error):
                raise
            return folder, {"divergences": divergences}
    won = healed.provenance["healing"][-1]
    divergences.insert(0, won["divergence_before"])
    figures = {name: won[name] for name in ("steps", "best_step", "seconds")}
    return made, {"read": won["tokens"], **figures, "divergences": divergences}


def identity(options: argparse.Namespace, folder: Path, tokens: int) -> dict[str, Any]:
    """What tells a row from others."""
    recipe = {"tokens_a_step": options.tokens_a_step, "rate": options.rate} if tokens else {}
    name = str(folder)
    return {"checkpoint": name, "plan": options.plans[name], "tokens": tokens, **recipe}


def row_of(
    bench: Bench, options: argparse.Namespace, folder: Path, tokens: int, on_progress: OnProgress
) -> dict[str, Any]:
    """Losses in nats per token above dense, by kind of text, and accuracies where tasks are run."""
    row = identity(options, folder, tokens)
    with tempfile.TemporaryDirectory(prefix="recovered-") as work:
        if tokens:
            made = Path(work) / "made"
            folder, figures = recovered(options, folder, tokens, made, on_progress)
            row |= figures
        losses = bench.perplexities(loaded(folder))
        row["excess_nats"] = {name: math.log(p / bench.dense[name]) for name, p in losses.items()}
        if options.task_settings:
            found = accuracies(folder, options.task_settings, on_progress)
            row["tasks"], row["task_average"] = to_builtins(found)
    return row


def measure(options: argparse.Namespace, arguments: Sequence[str] | None) -> dict[str, Any]:
    """The record of all runs, written after each of them."""
    output.check_place(options.output, "recovery-curve")
    output.check_positive(options, "rate", "tokens_a_step")
    options.task_settings = task_settings_of(options)
    options.plans = {str(folder): plan_hash(folder) for folder in options.checkpoints}
    tokens = sorted(number_list(options.tokens, "--tokens", int), reverse=True)
    with output.working_folder("recovery-curve") as (work, on_progress):
        options.own_text = options.own_text or work
        bench = Bench(options, corpora_of(options, work))
        settings = {
            name: str(getattr(options, name))
            for name in ("model", "evaluate", "evaluation_blocks", "sequence_length")
        } | recorded(options.task_settings)
        record = output.new_record(
            "recovery-curve", arguments, settings, dense_perplexity=bench.dense, rows=[]
        )
        if options.output is not None and options.output.exists():
            record["rows"] = rows_of(options.output, settings, bench.dense, options.plans)
            earlier = curve_of(options.output)
            if change := other_run(earlier, record):
                raise InputError(f"{options.output} {change}: name another file as --output")
            record["command"] = joined(earlier["command"], record["command"])
        for folder, count in itertools.product(options.checkpoints, tokens):
            now = identity(options, folder, count)
            if not any(now.items() <= row.items() for row in record["rows"]):
                record["rows"].append(row_of(bench, options, folder, count, on_progress))
                output.write(options.output, record)
    return record


def plan_hash(folder: Path) -> str:
    """SHA-256 of a checkpoint's plan; InputError without one."""
    load_plan(folder / PLAN_FILE)
    return sha256(folder / PLAN_FILE)


def rows_of(
    path: Path, settings: dict[str, Any], dense: dict[str, float], plans: dict[str, str]
) -> list[dict[str, Any]]:
    """Rows of an earlier run; InputError for other settings, dense perplexities or plans."""
    earlier = curve_of(path)
    rows: list[dict[str, Any]] = earlier["rows"]
    had = {(row["checkpoint"], row.get("plan")) for row in rows}
    others = [name for name, plan in had if plans.get(name, plan) != plan]
    if change := changed(earlier["settings"], settings):
        change = f"was measured with {change}"
    elif others:
        change = f"has rows of another {others[0]}"
    if change := change or other_text(earlier["dense_perplexity"], dense):
        raise InputError(f"{path} {change}: name another file as --output")
    return rows


def curve_of(path: Path) -> dict[str, Any]:
    """A record of a recovery curve; InputError for any other, and for a damaged one."""
    record = read_record(path, REMEDY)
    if record["benchmark"] != "recovery-curve":
        raise InputError(f"{path} is no record of a recovery curve: {REMEDY}")
    typed(record, Curve, path, REMEDY)
    return record


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["excess_nats"]))
    heads = ("tokens", "a step", "rate", *kinds, "mean", "accuracy, %", "tokens/s")
    table = figure_table("Nats per token above dense", ("checkpoint", *heads))
    for row in sorted(rows, key=lambda row: (row["checkpoint"], row["tokens"])):
        recipe = (f"{row['tokens_a_step']:,}", f"{row['rate']:g}") if row["tokens"] else ("", "")
        losses = [row["excess_nats"].get(kind, math.nan) for kind in kinds]
        figures = [*losses, sum(losses) / len(losses)]
        nats = ["" if math.isnan(nats) else f"{nats:+.3f}" for nats in figures]
        speed = f"{row['read'] / row['seconds']:,.0f}" if "read" in row else ""
        average = row.get("task_average")
        accuracy = percent(average["accuracy"], average["standard_error"]) if average else ""
        table.add_row(row["checkpoint"], f"{row['tokens']:,}", *recipe, *nats, accuracy, speed)
    return table


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The divergence on held-out text at the checks of each run, by the tokens that it had read."""
    from matplotlib.figure import Figure

    from grasp_deploy.report.figure_style import look_of, our_style

    runs = [row for row in rows if "read" in row]
    if not runs:
        raise InputError("--png: no row is of a recovery, to be drawn; leave it out")
    with our_style():
        figure = Figure(figsize=(6, 3.6))
        panel = figure.subplots()
        for place, row in enumerate(sorted(runs, key=lambda r: -r["divergences"][0])):
            checks = len(row["divergences"]) - 1
            across = [row["read"] / 1e6 * check / checks for check in range(checks + 1)]
            label = f"{row['checkpoint']}, steps of {row['tokens_a_step']:,} at {row['rate']:g}"
            panel.plot(across, row["divergences"], **look_of(place), label=label)
        panel.set_xlabel("tokens of recovery, millions")
        panel.set_ylabel("divergence from dense, nats per token")
        panel.set_ylim(bottom=0)
        panel.legend()
        output.write_png(path, figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="recover and measure")
    run.add_argument("checkpoints", type=Path, nargs="+", help="folders of pruned checkpoints")
    run.add_argument("--model", type=Path, required=True, help="folder of the dense model")
    run.add_argument("--tokens", default="0,65536,262144,1000000", help="0: as pruned")
    run.add_argument("--rate", type=float, default=recovery.RATE, help="of a weight's size")
    run.add_argument("--tokens-a-step", type=int, default=recovery.TOKENS_A_STEP)
    run.add_argument("--own-text", type=Path, help="file to share what the dense model wrote")
    run.add_argument("--evaluate", action="append", metavar="[NAME=]TEXT[@SPLIT]", help="repeat")
    run.add_argument("--evaluation-blocks", type=int, default=80)
    run.add_argument("--sequence-length", type=int, default=512, help="of the evaluation")
    add_task_options(run)
    output.add_output_options(run, "two blocks of text of each kind")
    drawn = commands.add_parser("draw", help="draw records")
    drawn.add_argument("records", type=Path, nargs="+")
    drawn.add_argument("--png", type=Path, help="where to write the figure")
    options = parser.parse_args(arguments)
    if options.command == "run":
        rows = measure(options, arguments)["rows"]
    else:
        rows = [row for path in options.records for row in curve_of(path)["rows"]]
    stdout.print(table_of(rows))
    if options.command == "draw" and options.png is not None:
        draw(rows, options.png)


if __name__ == "__main__":
    output.run_command(main)
