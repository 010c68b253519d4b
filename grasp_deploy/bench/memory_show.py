"""The memory of prefills, as a table, a sentence and a figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.memory import Cell, MemoryRecord
from grasp_deploy.bench.record import prediction_outcome, relative_error
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import counted, grouped, span

if TYPE_CHECKING:
    from grasp_deploy.report.figure_style import Drawing

PARTS = ("weight_bytes", "kv_bytes", "other_bytes", "peak_bytes")
HEADS = ("model", "weights", "KV cache", "other", "peak")
PEAK_TOLERANCE = 0.1  # activations depend on kernels, of which config.json says nothing
GROUP_WIDTH = 0.84


def memory_table(record: MemoryRecord) -> Table:
    """Weights, KV cache, the rest and the peak of each prefill; if measured, the predicted peak."""
    is_measured = all(cell.measured for cell in record.cells)
    what, beside = ("Memory", ["predicted"]) if is_measured else ("Predicted memory", [])
    title = f"{what} of a prefill of {record.settings.batch:,} prompts, MiB"
    notes = ["other: peak - weights - KV cache; change: of the peak against the first model"]
    if not is_measured:
        notes.append("predicted only: there was no GPU")
    table = figure_table(title, [*HEADS, *beside, "change"], notes, fold=False)
    for cells in grouped(record.cells, lambda cell: cell.prompt_tokens):
        table.add_row(Text(f"{cells[0].prompt_tokens:,} tokens", style="bold"))
        for cell in cells:
            sizes = [getattr(cell.sizes, name) for name in PARTS]
            sizes += [cell.predicted.peak_bytes] * is_measured
            figures = [f"{size / 2**20:,.1f}" for size in sizes]
            change = _change(record, cell)
            table.add_row(Text(cell.model), *figures, "" if change is None else f"{change:+.1%}")
        table.add_section()
    return table


def _change(record: MemoryRecord, cell: Cell) -> float | None:
    dense = record.dense_cell(cell)
    return cell.sizes.peak_bytes / dense.sizes.peak_bytes - 1 if dense else None


def headlines(record: MemoryRecord) -> list[dict[str, Any]]:
    """One sentence for each model over all its points: its peak, and how well it was predicted."""
    lines = []
    for cells in grouped(record.cells, lambda cell: cell.model):
        changes = [change for cell in cells if (change := _change(record, cell)) is not None]
        against = f" ({span(changes, '+.1%')} against {record.baseline})" if changes else ""
        peaks = span([cell.sizes.peak_bytes / 2**20 for cell in cells], ",.1f", " MiB")
        sentence = f"prefill peak {peaks}{against}, over {counted(len(cells), 'point')}; "
        outcome = "predicted only"
        if all(cell.measured for cell in cells):
            weights, kv, _, peak = (
                max((_error(cell, name) for cell in cells), key=abs) for name in PARTS
            )
            error = max(weights, kv, key=abs)
            outcome = prediction_outcome(error)
            sentence += (
                f"weights and KV cache {outcome} ({f'{error:+.2%} at worst' if error else 'equal'})"
                f"; the peak at most {peak:+.1%} from its prediction."
            )
            if outcome == "as predicted" and abs(peak) > PEAK_TOLERANCE:
                outcome = "peak not as predicted"
        else:
            sentence += f"{outcome}."
        lines.append(record.line(cells[0].model, outcome, sentence))
    return lines


def _error(cell: Cell, name: str) -> float:
    return relative_error(getattr(cell.measured, name), getattr(cell.predicted, name))


def figures(record: MemoryRecord) -> Iterator[Drawing]:
    """Bars of the peak, model by model, with a mark where it was predicted."""
    from grasp_deploy.report import figure_style as style

    title = "Prefill peak memory by prompt length"
    axes = style.new_axes(title, f"batch {record.settings.batch:,}; weights and KV cache included")
    names = [model.name for model in record.models]
    lengths = sorted({cell.prompt_tokens for cell in record.cells})
    width = GROUP_WIDTH / len(names)
    for cell in record.cells:
        index = names.index(cell.model)
        center = lengths.index(cell.prompt_tokens) + (index - (len(names) - 1) / 2) * width
        axes.bar(center, cell.sizes.peak_bytes / 2**20, 0.92 * width, color=style.color_of(index))
        ends = center - width / 2, center + width / 2
        axes.hlines(cell.predicted.peak_bytes / 2**20, *ends, color=style.INK, linewidth=1.3)
    axes.set_xticks(range(len(lengths)), labels=[f"{length:,}" for length in lengths])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("prompt length, tokens")
    axes.set_ylabel("MiB")
    style.count_from_zero(axes)
    handles = [style.patch_handle(index, name) for index, name in enumerate(names)]
    predicted = style.key_handle("predicted", color=style.INK)
    yield style.finished("memory", title, axes, [*handles, predicted])
