"""The KV cache of each model, as a table, a sentence and a figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.kv import Cell, KvRecord
from grasp_deploy.bench.record import AS_PREDICTED, prediction_outcome, relative_error
from grasp_deploy.bench.table import change, mebibytes, new_table
from grasp_deploy.engine.offline import KvCapacity
from grasp_deploy.files.sizes import format_bytes
from grasp_deploy.stats.wording import span

if TYPE_CHECKING:
    from grasp_deploy.report.figure_style import Drawing

HEADS = ("model", "KV bytes\nper token", "in one\nlayer", "cache,\nMiB", "", "tokens", "sequences")
LARGEST_BLOCK_TOKENS = 128  # of vLLM's cache, which has whole blocks only: this many on a CPU
TITLE = "Sequences that the KV cache holds"
BAR_WIDTH = 0.77


def kv_table(record: KvRecord) -> Table:
    """Tokens and full sequences that fit beside the weights: predicted, measured, change."""
    measured = any(cell.measured for cell in record.cells)
    table = new_table(
        f"KV cache beside the weights in {record.settings.memory_bytes / 2**20:,.0f} MiB; "
        f"sequences of {record.cells[0].context_tokens:,} tokens",
        HEADS,
        caption=None if measured else "predicted only: no vLLM was asked",
    )
    for cell in record.cells:
        _add_rows(table, cell, record.dense_cell(cell))
        table.add_section()
    return table


def _add_rows(table: Table, cell: Cell, dense: Cell | None) -> None:
    figures = (
        f"{cell.kv_bytes_per_token:,}",
        span(cell.layer_kv_bytes_per_token, ",").replace(" to ", " to\n"),
        mebibytes(cell.memory_bytes),
    )
    table.add_row(Text(cell.model), *figures, "predicted", *_held(cell.predicted))
    if cell.measured:
        table.add_row("", "", "", "", "vLLM", *_held(cell.measured))
    if dense:
        table.add_row(
            "",
            change(cell.kv_bytes_per_token, dense.kv_bytes_per_token),
            "",
            change(cell.memory_bytes, dense.memory_bytes),
            "change",
            change(cell.held.cached_tokens, dense.held.cached_tokens),
            change(cell.held.sequences, dense.held.sequences),
        )


def _held(capacity: KvCapacity) -> tuple[str, str]:
    return f"{capacity.cached_tokens:,}", f"{capacity.sequences:,}"


def headlines(record: KvRecord) -> list[dict[str, Any]]:
    """One sentence for each model: what fits, against the first model and the prediction."""
    lines = []
    for cell in record.cells:
        tokens, predicted = cell.held.cached_tokens, cell.predicted.cached_tokens
        outcome, off, more = "predicted only", "", ""
        if cell.measured:
            error = relative_error(tokens, predicted)
            whole_blocks = 0 <= predicted - tokens < LARGEST_BLOCK_TOKENS
            outcome = AS_PREDICTED if whole_blocks else prediction_outcome(error)
            off = f" ({error:+.2%})"
        if dense := record.dense_cell(cell):
            more = f", {tokens / dense.held.cached_tokens:.2f}x the tokens of {dense.model}"
        sentence = (
            f"{format_bytes(cell.memory_bytes)} of cache hold {cell.held.sequences:,} sequences of "
            f"{cell.context_tokens:,} tokens{more}; {outcome}{off}."
        )
        lines.append(record.line(cell.model, outcome=outcome, sentence=sentence))
    return lines


def figures(record: KvRecord) -> Iterator[Drawing]:
    """Horizontal bars of the sequences that fit, one for each model."""
    from matplotlib.ticker import MaxNLocator

    from grasp_deploy.report import figure_style as style

    measured = any(cell.measured for cell in record.cells)
    source = "as the running vLLM reports them" if measured else "predicted from config.json"
    memory = format_bytes(record.settings.memory_bytes)
    note = f"{source}; legend: size of the cache beside the weights in {memory}"
    axes = style.new_axes(TITLE, note, 1.3 + 0.24 * len(record.cells))
    label = {"edgecolor": "none", "facecolor": style.SURFACE, "pad": 0.8}
    for index, cell in enumerate(record.cells):
        held, predicted = cell.held.sequences, cell.predicted.sequences
        axes.barh(index, held, BAR_WIDTH, color=style.color_of(index), linewidth=0)
        if cell.measured:
            ends = index - BAR_WIDTH / 2, index + BAR_WIDTH / 2
            axes.vlines(predicted, *ends, color=style.INK, linewidth=1.3)
        place, beside = (max(held, predicted), index), "offset points"
        axes.annotate(
            f"{held:,}", place, (4, 0), textcoords=beside, va="center", fontsize=8.5, bbox=label
        )
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(f"sequences of {record.cells[0].context_tokens:,} tokens at once")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    handles = [
        style.patch_handle(index, f"{cell.model}: {format_bytes(cell.memory_bytes)}")
        for index, cell in enumerate(record.cells)
    ]
    predictions = [style.key_handle("predicted", color=style.INK)] if measured else []
    yield style.finished("kv-capacity", TITLE, axes, [*handles, *predictions])
