"""The KV cache of each model, as a table, a sentence and a figure."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.kv import KvRecord
from grasp_deploy.bench.show import prediction_outcome, relative_error
from grasp_deploy.files.sizes import format_bytes
from grasp_deploy.report.section import Drawing
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import counted

HEADS = ("model", "bytes per\ntoken", "cache", "tokens,\npredicted", "tokens,\nvLLM", "sequences")
LARGEST_BLOCK_TOKENS = 128  # on a CPU; vLLM's cache holds whole blocks only


def tables(record: KvRecord) -> list[Table]:
    """Tokens and full sequences that fit beside the weights, predicted and measured."""
    table = figure_table(
        f"KV cache beside the weights in {format_bytes(record.settings.memory_bytes)}; "
        f"sequences of {record.cells[0].context_tokens:,} tokens",
        HEADS,
        () if any(c.measured for c in record.cells) else ["predicted only: no vLLM was asked"],
    )
    for cell in record.cells:
        table.add_row(
            Text(cell.model),
            f"{cell.kv_bytes_per_token:,}",
            format_bytes(cell.memory_bytes),
            f"{cell.predicted.cached_tokens:,}",
            f"{cell.measured.cached_tokens:,}" if cell.measured else "",
            f"{cell.held.sequences:,}",
        )
    return [table]


def headlines(record: KvRecord) -> Iterator[dict[str, Any]]:
    """One sentence for each model: what fits, against the first model and the prediction."""
    for cell in record.cells:
        tokens, predicted = cell.held.cached_tokens, cell.predicted.cached_tokens
        outcome, off, more = "predicted only", "", ""
        if cell.measured:
            error = relative_error(tokens, predicted)
            whole_blocks = 0 <= predicted - tokens < LARGEST_BLOCK_TOKENS
            outcome = prediction_outcome(0.0 if whole_blocks else error)
            off = f" ({error:+.2%})"
        if dense := record.dense_cell(cell):
            more = f", {tokens / dense.held.cached_tokens:.2f}x the tokens of {dense.model}"
        sequences = counted(cell.held.sequences, "sequence")
        sentence = (
            f"{format_bytes(cell.memory_bytes)} of cache hold {sequences} of "
            f"{cell.context_tokens:,} tokens{more}; {outcome}{off}."
        )
        yield record.line(cell.model, outcome, sentence)


def figures(record: KvRecord) -> Iterator[Drawing]:
    """Horizontal bars of the sequences that fit, one for each model."""
    from grasp_deploy.report import figure_style as style

    measured = any(cell.measured for cell in record.cells)
    source = "as the running vLLM reports them" if measured else "predicted from config.json"
    memory, title = format_bytes(record.settings.memory_bytes), "Sequences that the KV cache holds"
    note = f"{source}; legend: size of the cache beside the weights in {memory}"
    axes = style.new_axes(title, note)
    handles: list[Any] = []
    for index, cell in enumerate(record.cells):
        label = f"{cell.model}: {format_bytes(cell.memory_bytes)}"
        color = style.look_of(index)["color"]
        bars = axes.barh(index, cell.held.sequences, color=color, label=label)
        axes.bar_label(bars, fmt="{:,.0f}", padding=4)
        handles.append(bars)
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(f"sequences of {record.cells[0].context_tokens:,} tokens at once")
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    yield style.finished("kv-capacity", title, axes, handles)
