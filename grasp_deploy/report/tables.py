"""Rich tables of results, drawn from plain records."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.checkpoint.card.model_card import (
    ERRORS_ARE,
    MARK_MEANS,
    TASK_HEAD,
    corpus_cells,
    task_cells,
)
from grasp_deploy.files.record import is_number

SIZES = (
    ("held-out perplexity", "perplexity", 1, ".2f"),
    ("parameters", "parameters", 1, ",.0f"),
    ("weights, MiB", "weight_bytes", 2**20, ",.2f"),
    ("KV cache, bytes per token", "kv_bytes_per_token", 1, ",.0f"),
    ("states, bytes per sequence", "state_bytes_per_sequence", 1, ",.0f"),
    ("tokens that fit beside the weights", "cached_tokens_that_fit", 1, ",.0f"),
)
# As in a card's Markdown, with two wide columns in fewer words: a row fits 80 columns.
CORPUS_HEAD = ("perplexity on", "tokens", "dense", "pruned", "nats lost")
PROVENANCE = ("command", "created", "machine", "versions", "settings")
LONGEST_LIST = 8  # items that a cell shows one by one


def layer_table(dense: dict[str, Any], pruned: dict[str, Any]) -> Table:
    """Query heads, KV heads and FFN channels, or experts, per layer and in all.

    From two footprint records.
    """
    has_experts = "num_experts" in dense["layers"][0]
    ffn = "experts" if has_experts else "FFN channels"
    table = figure_table("What each layer keeps", ("layer", "query heads", "KV heads", ffn))
    names = ["num_attention_heads", "num_key_value_heads"]
    names.append("num_experts" if has_experts else "intermediate_size")
    for index, (before, after) in enumerate(zip(dense["layers"], pruned["layers"], strict=True)):
        table.add_row(str(index), *(f"{after[name]} of {before[name]}" for name in names))
    table.add_section()
    sums = ([sum(layer[n] for layer in m["layers"]) for m in (pruned, dense)] for n in names)
    table.add_row("all", *(f"{kept:,} of {had:,} ({kept / had:.1%})" for kept, had in sums))
    return table


def footprint_table(
    columns: dict[str, dict[str, Any]], title: str = "Predicted from config.json"
) -> Table:
    """Footprint records side by side, one column a model; of two the second over the first."""
    models = list(columns.values())
    table = figure_table(title, ("", *columns, *["pruned / dense"] * (len(models) - 1)))
    for label, key, unit, form in SIZES:
        if all(key in model for model in models):
            first, *others = values = [model[key] / unit for model in models]
            shares = (f"{other / first:.2%}" if first else "" for other in others)
            table.add_row(label, *(f"{value:{form}}" for value in values), *shares)
    table.add_row("distinct layer shapes", *(str(m["distinct_shapes"]) for m in models))
    sizes = (", ".join(map(str, m["tensor_parallel_sizes"])) for m in models)
    table.add_row("tensor-parallel sizes that fit", *sizes)
    return table


def time_table(time: Mapping[str, Any]) -> Table:
    """Time of the dense model, asked for, and predicted of the mask."""
    title = f"Time of a decode step at batch {time['batch']:,}, context {time['context']:,}"
    table = figure_table(title, ("", "ms", "times as fast as dense"))
    for label in ("dense", "asked", "predicted"):
        if seconds := time[f"{label}_seconds"]:
            table.add_row(label, f"{1e3 * seconds:.4g}", f"{time['dense_seconds'] / seconds:.2f}")
    return table


def check_table(checks: list[dict[str, Any]]) -> Table:
    """The links of a verification."""
    table = Table("check", "", "detail", title="Verification", title_justify="left")
    colors = {"proven": "green", "not proven": "yellow", "wrong": "red"}
    for check in checks:
        outcome = check["outcome"]
        shown = Text(outcome if outcome == "proven" else outcome.upper(), colors[outcome])
        table.add_row(check["name"], shown, Text(check["detail"]))
    return table


def card_tables(quality: Mapping[str, Any]) -> list[Table]:
    """Perplexity by corpus, and accuracy by task where there is one; dense beside pruned."""
    marked = any(row["calibrated_on"] for row in quality["corpora"])
    notes = [MARK_MEANS, ERRORS_ARE] if marked else [ERRORS_ARE]
    corpora = figure_table("", CORPUS_HEAD, notes)
    for row in quality["corpora"]:
        name, _, *figures = corpus_cells(row)
        tokens = f"{row['tokens']:,} ({row['sequence_length']:,} each)"
        corpora.add_row(*map(Text, [name, tokens, *figures]))
    tasks = figure_table("", TASK_HEAD)
    for row in quality["tasks"]:
        tasks.add_row(*map(Text, task_cells(row)))
    return [table for table in (corpora, tasks) if table.row_count]


def provenance_table(record: Mapping[str, Any]) -> Table:
    """Command, machine, releases and settings of a record."""
    present = {key: record[key] for key in PROVENANCE if key in record}
    return value_table("Where it comes from", present)


def figure_table(title: str, heads: Sequence[str], notes: Sequence[str] = ()) -> Table:
    """A table whose first column has names, and whose figures stand on the right."""
    table = Table(title=title or None, title_justify="left", caption_justify="left")
    table.min_width = min(len(title), 60) or None  # else a narrow table would wrap its title
    table.caption = "\n".join(notes) or None
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left", overflow="fold")
    return table


def add_group(table: Table, head: str, rows: Iterable[Sequence[str | Text]]) -> None:
    """Add rows under a line of their own; the first cell of each is a name, taken as it is."""
    table.add_row(Text(head, "bold"))
    for name, *cells in rows:
        table.add_row(name if isinstance(name, Text) else Text(name), *cells)
    table.add_section()


def value_table(title: str, values: Mapping[str, Any]) -> Table:
    """Values of all types by their keys; long lists of numbers by their median."""
    table = Table(title=title, title_justify="left", show_header=False)
    for name in ("name", "value"):
        table.add_column(name, overflow="fold")
    for name, value in _flat(values):
        table.add_row(Text(name), Text(value))
    return table


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}, ")
        elif value is not None:
            yield name, _plain(value)


def _plain(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.6g}"
        case int():
            return f"{value:,}"
        case [dict() | list(), *_]:
            return f"{len(value)} entries"
        case [*_] if len(value) > LONGEST_LIST and all(map(is_number, value)):
            return f"{len(value)} values, median {_plain(statistics.median(value))}"
        case list():
            return ", ".join(map(_plain, value))
    return str(value)
