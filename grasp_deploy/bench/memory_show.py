"""The memory of prefills, as a table, a sentence and a figure."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.memory import Cell, MemoryRecord
from grasp_deploy.bench.show import cell_table, line_drawing, prediction_outcome, relative_error
from grasp_deploy.report.section import Drawing
from grasp_deploy.stats.wording import counted, grouped, span

PARTS = ("weight_bytes", "kv_bytes", "other_bytes", "peak_bytes")
HEADS = ("model", "weights", "KV cache", "other", "peak")
PEAK_TOLERANCE = 0.1  # activations depend on the kernels, which config.json does not name


def tables(record: MemoryRecord) -> list[Table]:
    """Weights, KV cache, the rest and the peak of each prefill; if measured, the predicted peak."""
    is_measured = all(cell.measured for cell in record.cells)
    what, beside = ("Memory", ["predicted"]) if is_measured else ("Predicted memory", [])
    title = f"{what} of a prefill of {counted(record.settings.batch, 'prompt')}, MiB"
    notes = ["other: peak - weights - KV cache; change: of the peak against the first model"]
    if not is_measured:
        notes.append("predicted only, not measured on a GPU")

    def figures(cell: Cell, dense: Cell | None) -> list[str | Text]:
        sizes = [getattr(cell.sizes, name) for name in PARTS]
        sizes += [cell.predicted.peak_bytes] * is_measured
        change = f"{_change(cell, dense):+.1%}" if dense else ""
        return [*(f"{size / 2**20:,.1f}" for size in sizes), change]

    heads = [*HEADS, *beside, "change"]
    point = "{0.prompt_tokens:,} tokens".format
    return [cell_table(record, title, heads, notes, point, figures)]


def _change(cell: Cell, dense: Cell) -> float:
    return cell.sizes.peak_bytes / dense.sizes.peak_bytes - 1


def headlines(record: MemoryRecord) -> Iterator[dict[str, Any]]:
    """One sentence for each model over all its points: its peak, and how well it was predicted."""
    for cells in grouped(record.cells, lambda cell: cell.model):
        changes = [_change(c, dense) for c in cells if (dense := record.dense_cell(c))]
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
        yield record.line(cells[0].model, outcome, sentence)


def _error(cell: Cell, name: str) -> float:
    return relative_error(getattr(cell.measured, name), getattr(cell.predicted, name))


def figures(record: MemoryRecord) -> Iterator[Drawing]:
    """The peak of each model by prompt length, beside what was predicted."""
    title = "Prefill peak memory by prompt length"
    note = f"batch {record.settings.batch:,}; weights and KV cache included"
    curves = {"predicted": lambda cell: cell.predicted.peak_bytes / 2**20}
    if all(cell.measured for cell in record.cells):
        curves = {"measured": lambda cell: cell.sizes.peak_bytes / 2**20, **curves}
    labels = "prompt length, tokens", "MiB"
    heading = "memory", title, note
    yield line_drawing(record, heading, labels, record.cells, lambda c: c.prompt_tokens, curves)
