"""The memory of prefills, as a table, a sentence and a figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.memory import Cell, MemoryRecord, Sizes
from grasp_deploy.bench.record import AS_PREDICTED, prediction_outcome, relative_error
from grasp_deploy.bench.table import change, mebibytes, new_table
from grasp_deploy.stats.wording import common_outcome, counted, grouped, points_by_outcome, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from grasp_deploy.report.figure_style import Drawing

HEADS = ("tokens", "model", "", "weights", "KV cache", "other", "peak")
PEAK_TOLERANCE = 0.1  # activations depend on kernels, of which config.json says nothing
SHADES = {"darkest: weights": 1.0, "lighter: KV cache": 0.62, "lightest: all the rest": 0.3}
GROUP_WIDTH = 0.84


def memory_table(record: MemoryRecord) -> Table:
    """Weights, KV cache, the rest and the peak of each prefill: predicted, measured, change.

    The change is that of the measured figure against the first model's at the same length.
    """
    title = f"Memory of a prefill of {record.settings.batch:,} prompts, MiB"
    caption = "other = peak - weights - KV cache; change: of the measured figures"
    table = new_table(title, HEADS, caption)
    for cells in grouped(record.cells, lambda cell: cell.prompt_tokens):
        for cell in cells:
            predicted, measured = _parts(cell.predicted), _parts(cell.measured)
            name = f"{cell.prompt_tokens:,}", Text(cell.model)
            table.add_row(*name, "predicted", *map(mebibytes, predicted))
            table.add_row("", "", "measured", *map(mebibytes, measured))
            if dense := record.dense_cell(cell):
                table.add_row("", "", "change", *map(change, measured, _parts(dense.measured)))
        table.add_section()
    return table


def _parts(sizes: Sizes) -> tuple[int, int, int, int]:
    return sizes.weight_bytes, sizes.kv_bytes, sizes.other_bytes, sizes.peak_bytes


def headlines(record: MemoryRecord) -> list[dict[str, Any]]:
    """One sentence for each model over all its points: its peak, and how well it was predicted."""
    lines = []
    for cells in grouped(record.cells, lambda cell: cell.model):
        changes = [
            cell.measured.peak_bytes / dense.measured.peak_bytes - 1
            for cell in cells
            if (dense := record.dense_cell(cell))
        ]
        against = f" ({span(changes, '+.1%')} against {record.baseline})" if changes else ""
        peaks = span([cell.measured.peak_bytes / 2**20 for cell in cells], ",.1f", " MiB")
        errors = [_errors(cell) for cell in cells]
        error, peak_error = (max(each, key=abs) for each in zip(*errors, strict=True))
        points = [cell.prompt_tokens for cell in cells]
        outcomes = [prediction_outcome(each) for each, _ in errors]
        exact = points_by_outcome(list(zip(outcomes, points, strict=True)))
        sentence = (
            f"prefill peak {peaks}{against}, over {counted(len(cells), 'point')}; weights and KV "
            f"cache {exact} ({f'{error:+.2%} at worst' if error else 'equal'}); "
            f"the peak at most {peak_error:+.1%} from its prediction."
        )
        outcome = common_outcome(map(_outcome, cells))
        lines.append(record.line(cells[0].model, outcome=outcome, sentence=sentence))
    return lines


def _errors(cell: Cell) -> tuple[float, float]:
    """Relative errors: the larger one of weights and KV cache, and that of the peak."""
    weights, kv, _, peak = map(relative_error, _parts(cell.measured), _parts(cell.predicted))
    return max(weights, kv, key=abs), peak


def _outcome(cell: Cell) -> str:
    error, peak_error = _errors(cell)
    outcome = prediction_outcome(error)
    is_off = outcome == AS_PREDICTED and abs(peak_error) > PEAK_TOLERANCE
    return "peak not as predicted" if is_off else outcome


def figures(record: MemoryRecord) -> Iterator[Drawing]:
    """Bars of weights, KV cache and the rest, model by model."""
    from matplotlib.patches import Patch

    from grasp_deploy.report import figure_style as style

    title = "Prefill peak memory by prompt length"
    note = f"batch {record.settings.batch:,}; weights, KV cache, and all the rest of the peak"
    axes = style.new_axes(title, note)
    names = [model.name for model in record.models]
    lengths = sorted({cell.prompt_tokens for cell in record.cells})
    width = GROUP_WIDTH / len(names)
    for cell in record.cells:
        index = names.index(cell.model)
        center = lengths.index(cell.prompt_tokens) + (index - (len(names) - 1) / 2) * width
        _stack(axes, center, 0.92 * width, cell, style.color_of(index), style.INK)
    axes.set_xticks(range(len(lengths)), labels=[f"{length:,}" for length in lengths])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("prompt length, tokens")
    axes.set_ylabel("MiB")
    style.count_from_zero(axes)
    models = [style.patch_handle(index, name) for index, name in enumerate(names)]
    shades = [Patch(color=style.MUTED, alpha=alpha, label=name) for name, alpha in SHADES.items()]
    predicted = style.key_handle("predicted", color=style.INK)
    yield style.finished("memory", title, axes, [*models, *shades, predicted])


def _stack(axes: Axes, center: float, width: float, cell: Cell, color: str, ink: str) -> None:
    bottom = top = 0.0
    parts = zip(SHADES.values(), _parts(cell.measured), _parts(cell.predicted), strict=False)
    for alpha, measured, predicted in parts:
        axes.bar(center, measured / 2**20, width, bottom, color=color, alpha=alpha, linewidth=0)
        bottom += measured / 2**20
        top += predicted / 2**20
        axes.hlines(top, center - width / 2, center + width / 2, color=ink, linewidth=1.3)
