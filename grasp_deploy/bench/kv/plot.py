"""Sequences that the KV cache holds, model by model."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from grasp_deploy.bench.kv.record import Cell, KvRecord
from grasp_deploy.files.sizes import format_bytes
from grasp_deploy.report.figure_style import (
    INK,
    SURFACE,
    Drawing,
    color_of,
    finished,
    key_handle,
    new_axes,
    patch_handle,
)

TITLE = "Sequences that the KV cache holds"
BAR_WIDTH = 0.77


def figures(record: KvRecord) -> Iterator[Drawing]:
    """Horizontal bars of the sequences that fit, one for each model."""
    measured = any(cell.measured for cell in record.cells)
    source = "as the running vLLM reports them" if measured else "predicted from config.json"
    memory = format_bytes(record.settings.memory_bytes)
    note = f"{source}; legend: size of the cache beside the weights in {memory}"
    axes = new_axes(TITLE, note, 1.3 + 0.24 * len(record.cells))
    handles: list[Artist] = []
    for index, cell in enumerate(record.cells):
        _bar(axes, index, cell)
        handles.append(patch_handle(index, f"{cell.model}: {format_bytes(cell.memory_bytes)}"))
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(f"sequences of {record.cells[0].context_tokens:,} tokens at once")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if measured:
        handles.append(key_handle("predicted", color=INK))
    yield finished("kv-capacity", TITLE, axes, handles)


def _bar(axes: Axes, index: int, cell: Cell) -> None:
    sequences, predicted = cell.held.sequences, cell.predicted.sequences
    axes.barh(index, sequences, BAR_WIDTH, color=color_of(index), linewidth=0)
    if cell.measured:
        ends = index - BAR_WIDTH / 2, index + BAR_WIDTH / 2
        axes.vlines(predicted, *ends, color=INK, linewidth=1.3)
    axes.annotate(
        f"{sequences:,}",
        (max(sequences, predicted), index),
        (4, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 0.8},
    )
