"""LLaMA-2-7B at the budgets of published tables, ours beside the published figures.

Each table is entered under its own setting: its calibration text and as much of it, its sparsity as
a share for --keep, its length of sequences for perplexity, its tasks and their metric. The record
is written after each row. The same command goes on where it was stopped, within a compression too;
pruned models stay in --work. `--predict` shows sizes, hours and memory on a card of 80 GB and ends.

    python -m benchmarks.published --predict
    python -m benchmarks.published --output published.json --work published-models
    python -m benchmarks.report published.json --html published.html
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from msgspec import to_builtins
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.common.models import MODEL, NO_OWN, demo_texts
from benchmarks.common.output import (
    add_output_options,
    check_place,
    command_of,
    new_parser,
    run_command,
    working_folder,
    write,
)
from benchmarks.peak_memory import STAGES, peak_table, stage_rows
from benchmarks.study.published_figures import AVERAGE, TABLES, PublishedTable
from benchmarks.study.published_tables import Published, Row, published_of, published_tables
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.read.source import path_of, resolve_config, resolve_model
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.memory import Way, passes_of, summed_of
from grasp_deploy.config.compress_config import CompressConfig, with_own
from grasp_deploy.data import evaluation_source, read_blocks
from grasp_deploy.data.documents import Corpus, remote_documents
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.evaluate.perplexity import perplexity
from grasp_deploy.evaluate.settings import TaskSettings
from grasp_deploy.evaluate.tasks.harness import check_installed
from grasp_deploy.evaluate.tasks.run import bench_tasks
from grasp_deploy.files.disk import write_text
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import new_record, read_record

LLAMA = "meta-llama/Llama-2-7b-hf"
# The first 6,000 documents of the file that Týr's code samples from are over 5M tokens.
FINEWEB = "fineweb-edu"
FINEWEB_EDU = Corpus(
    "HuggingFaceFW/fineweb-edu",
    data_files={"train": "sample/10BT/000_00000.parquet"},
    streamed_documents=6_000,
)
EVALUATION_TOKENS_MILLIONS = 0.5  # of a corpus, about
PEAK, PEAK_32 = 312e12, 19.5e12  # operations a second: an A100 of 80 GB in bfloat16, in float32
REACHED = 0.4  # of the peak
ASSUMED = (
    f"predicted, not measured: passes and sums at {REACHED:.0%} of the peak of an A100 of 80 GB "
    f"({PEAK / 1e12:.0f} TFLOPS in 16 bits, {PEAK_32 / 1e12:.1f} in float32); solving least "
    "squares comes on top"
)
SMOKE: dict[str, Any] = {"sequences": 4, "sequence_length": 32, "evaluation_length": 32}


def earlier_rows(output: Path, settings: dict[str, Any]) -> list[Row]:
    """Rows that an earlier run left; InputError if it was made with other settings."""
    if not output.exists():
        return []
    earlier = published_of(read_record(output), output)
    before, now = earlier.settings, json.loads(json.dumps(settings))
    if changed := [name for name in now if before.get(name) != now[name]]:
        raise InputError(
            f"{output} was measured with {changed[0]} {before.get(changed[0])}, not "
            f"{now[changed[0]]}: name another file as --output, or remove it"
        )
    return earlier.rows


def config_of(table: PublishedTable, keep: float, options: argparse.Namespace) -> CompressConfig:
    """Our defaults, on a table's text and budget."""
    return CompressConfig(
        model=options.model,
        keep=keep,
        calibration=with_own(options.calibration or [table.calibration], NO_OWN),
        sequences=table.sequences,
        sequence_length=table.sequence_length,
        rounds=1 if options.smoke else CompressConfig.rounds,
        seed=options.seed,
    )


def fineweb_file(work: Path) -> Path:
    """A file of the first documents of FineWeb-Edu, streamed now unless it is there."""
    path = work / f"{FINEWEB}.jsonl"
    if not path.exists():
        documents = remote_documents(FINEWEB_EDU, "FineWeb-Edu", "train", "text")
        write_text(path, "".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def parameters_at(shape: ModelShape, keep: float) -> int:
    """Parameters of a model that spends all of its budget; units are whole, so at most this."""
    budget = budget_for(CompressConfig(model="", keep=keep), shape, torch.device("cpu"))
    return int(shape.parameters - (budget.total_cost - budget.limit))


def measure(
    table: PublishedTable, keep: float, options: argparse.Namespace, on_progress: OnProgress
) -> Row:
    """Compress at a budget (1: not at all), and measure what the table has."""
    seconds, recorded, model, calibration = {}, {}, options.model, []
    if keep < 1:
        config = config_of(table, keep, options)
        if FINEWEB in config.calibration:
            fetched = str(fineweb_file(options.work))
            texts = tuple(fetched if text == FINEWEB else text for text in config.calibration)
            config = replace(config, calibration=texts)
        made = options.work / f"{path_of(options.model).name}-{table.name}-{keep:g}"
        plan = compress(config, made, resume=True, on_progress=on_progress).plan
        seconds = dict(plan.provenance["seconds"])
        recorded, model = config.as_dict(), str(made)
        calibration = [Path(text).name for text in config.calibration if text != NO_OWN]
    began = time.perf_counter()
    values = perplexities(table, model, on_progress)
    values |= accuracies(table, model, options.task_limit, on_progress)
    return Row(
        table=table.name,
        keep=keep,
        parameters=bench_models([model])[0].shape.parameters,
        calibration=calibration,
        values=values,
        seconds={**seconds, "evaluation": time.perf_counter() - began},
        options={k: v for k, v in recorded.items() if k not in ("model", "calibration")},
    )


def perplexities(table: PublishedTable, model: str, on_progress: OnProgress) -> dict[str, float]:
    """Perplexity by corpus, over all whole sequences of the table's length."""
    tokenizer = load_tokenizer(resolve_model(model).directory)
    weights = load(model)
    found = {}
    for name, text in table.corpora.items():
        blocks = read_blocks(tokenizer, evaluation_source(text), table.evaluation_length, None)
        stage = f"perplexity, {name}"
        found[name] = perplexity(weights, blocks, on_progress=on_progress, stage=stage).perplexity
    return found


def accuracies(
    table: PublishedTable, model: str, limit: int | None, on_progress: OnProgress
) -> dict[str, float]:
    """Accuracy in percent by task, and their unweighted average; empty without tasks."""
    found: dict[str, float] = {}
    for examples in dict.fromkeys(task.examples for task in table.tasks):
        names = tuple(task.name for task in table.tasks if task.examples == examples)
        settings = TaskSettings(names, num_fewshot=examples, limit=limit)
        for cell in bench_tasks(bench_models([model]), settings, [], on_progress)["cells"]:
            metrics = cell["metrics"]
            accuracy = metrics.get(f"{table.metric},none", metrics["acc,none"])
            found[cell["task"]] = 100 * accuracy
    return found | ({AVERAGE: statistics.fmean(found.values())} if found else {})


def plan_table(
    tables: Sequence[PublishedTable], config: Path, options: argparse.Namespace
) -> Table:
    """The rows to measure: sparsity as it is published and as --keep, size, predicted hours."""
    shape = model_shape(read_config(config))
    drawn = Table(
        "table", title="What will be measured", title_justify="left", caption_justify="left"
    )
    for head in ("removed", "--keep", "parameters", "of all", "hours"):
        drawn.add_column(head, justify="right", no_wrap=True)
    total = 0.0
    for table in tables:
        millions = sum(task.tokens_millions for task in table.tasks)
        millions += EVALUATION_TOKENS_MILLIONS * len(table.corpora)
        # Pruned models run faster; the dense model's seconds are taken for all.
        for keep in (1.0, *table.keeps):
            tokens, summed = 1e6 * millions, 0.0
            if keep < 1:
                asked = config_of(table, keep, options)
                passes = passes_of(asked)
                tokens += table.sequence_length * sum(passes.values())
                wide = sum(n**2 for n in Way.of(asked, shape, on_gpu=True).columns)
                summed = table.sequence_length * summed_of(passes) * len(shape.layers) * wide
            seconds = 2 / REACHED * (shape.parameters * tokens / PEAK + summed / PEAK_32)
            total += seconds / 3600
            size = parameters_at(shape, keep)
            share = f"{size / shape.parameters:.1%}"
            hours = f"{seconds / 3600:.2f}"
            drawn.add_row(
                table.name, f"{1 - keep:.1%}", f"{keep:g}", f"{size / 1e6:,.1f} M", share, hours
            )
        drawn.add_section()
    means = "\n".join(f"{table.name}, removed: {table.sparsity_means}." for table in tables)
    drawn.caption = Text(f"{total:.1f} hours in all; {ASSUMED}.\n{means}")
    return drawn


def memory_tables(tables: Sequence[PublishedTable], config: Path, folder: Path) -> Iterator[Table]:
    """Predicted peak memory of each stage, at each table's length of sequences."""
    for table in tables:
        sequences = min(144, table.sequences)  # enough for the least squares
        shape = {"sequences": sequences, "sequence_length": table.sequence_length}
        asked = argparse.Namespace(config=config, keep=table.keeps[0], dtype="bfloat16", **shape)
        rows = list(islice(stage_rows(asked, folder / table.name), STAGES - 1))  # healing is last
        yield peak_table({"settings": {"config": f"setting of {table.name}"}, "rows": rows})


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=LLAMA, help=f"hub id or folder; default: {LLAMA}")
    parser.add_argument("--tables", default=",".join(TABLES), help="default: %(default)s")
    parser.add_argument(
        "--calibration",
        action="append",
        metavar="TEXT",
        help="instead of each table's own, alone unless self is named too; repeat",
    )
    parser.add_argument("--no-tasks", action="store_true", help="perplexity alone")
    parser.add_argument("--task-limit", type=int, help="only the first items of each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, metavar="DIR", help="default: published-models")
    parser.add_argument("--predict", action="store_true", help="sizes, hours and memory alone")
    add_output_options(parser, "the embedded model and its text, in seconds; figures of no use")
    parser.set_defaults(output=Path("published.json"))
    options = parser.parse_args(arguments)
    check_place(options.output, "published")
    if options.smoke and options.model == LLAMA:
        options.model = str(MODEL)
    return options


def chosen_tables(options: argparse.Namespace, folder: Path) -> list[PublishedTable]:
    """The tables that --tables names; a smoke run cuts them short and needs no hub."""
    names = options.tables.split(",")
    if unknown := [name for name in names if name not in TABLES]:
        raise InputError(f"--tables {unknown[0]!r} is unknown: choose from {','.join(TABLES)}")
    tables = [table for name, table in TABLES.items() if name in names]
    if options.smoke:
        calibration, heldout = map(str, demo_texts(folder))
        options.calibration, few = options.calibration or [calibration], f"{heldout}@[:5]"
        tables = [
            replace(t, keeps=t.keeps[-1:], corpora=dict.fromkeys(t.corpora, few), tasks=(), **SMOKE)
            for t in tables
        ]
    return [replace(table, tasks=()) for table in tables] if options.no_tasks else tables


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    console = Console()
    with working_folder("published") as (folder, on_progress):
        asked = list(options.calibration or ["each table's own"])
        options.work = options.work or (folder if options.smoke else Path("published-models"))
        tables = chosen_tables(options, folder)
        if any(table.tasks for table in tables) and not options.predict:
            check_installed()
        settings = {"model": options.model, "calibration": asked, "seed": options.seed}
        settings |= {"tasks": not options.no_tasks, "task_limit": options.task_limit}
        rows = earlier_rows(options.output, settings)
        config = resolve_config(options.model)
        console.print(plan_table(tables, config, options))
        if options.predict:
            console.print(*memory_tables(tables, config, folder))
            return
        record = new_record("published", command_of("published", arguments), settings)
        measured = {(row.table, row.keep) for row in rows}
        for table in tables:
            for keep in (1.0, *table.keeps):
                if (table.name, keep) not in measured:
                    rows.append(measure(table, keep, options, on_progress))
                    write(options.output, {**record, "rows": to_builtins(rows)})
    console.print(*published_tables(Published(settings, rows)))


if __name__ == "__main__":
    run_command(main)
