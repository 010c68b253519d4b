"""Prefill memory by prompt length: measured weights, KV cache and the rest, with predictions."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from grasp_deploy.bench.memory.record import Cell, MemoryRecord, Sizes
from grasp_deploy.report.figure_style import (
    INK,
    MUTED,
    Drawing,
    color_of,
    count_from_zero,
    finished,
    key_handle,
    new_axes,
    patch_handle,
)

SHADES = {"darkest: weights": 1.0, "lighter: KV cache": 0.62, "lightest: all the rest": 0.3}
GROUP_WIDTH = 0.84


def figures(record: MemoryRecord) -> Iterator[Drawing]:
    """Bars of weights, KV cache and the rest, model by model."""
    title = "Prefill peak memory by prompt length"
    note = f"batch {record.settings.batch:,}; weights, KV cache, and all the rest of the peak"
    axes = new_axes(title, note)
    lengths = sorted({cell.prompt_tokens for cell in record.cells})
    width = GROUP_WIDTH / len(record.models)
    for index, model in enumerate(record.models):
        offset = (index - (len(record.models) - 1) / 2) * width
        for cell in (cell for cell in record.cells if cell.model == model.name):
            center = lengths.index(cell.prompt_tokens) + offset
            _stack(axes, center, 0.92 * width, cell, color_of(index))
    axes.set_xticks(range(len(lengths)), labels=[f"{length:,}" for length in lengths])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("prompt length, tokens")
    axes.set_ylabel("MiB")
    count_from_zero(axes)
    models = [patch_handle(index, model.name) for index, model in enumerate(record.models)]
    shades = [Patch(color=MUTED, alpha=alpha, label=name) for name, alpha in SHADES.items()]
    predicted = key_handle("predicted", color=INK)
    yield finished("memory", title, axes, [*models, *shades, predicted])


def _stack(axes: Axes, center: float, width: float, cell: Cell, color: str) -> None:
    bottom = predicted_top = 0.0
    parts = zip(SHADES.values(), _mib(cell.measured), _mib(cell.predicted), strict=True)
    for alpha, measured, predicted in parts:
        axes.bar(center, measured, width, bottom, color=color, alpha=alpha, linewidth=0)
        bottom += measured
        predicted_top += predicted
        axes.hlines(predicted_top, center - width / 2, center + width / 2, color=INK, linewidth=1.3)


def _mib(sizes: Sizes) -> list[float]:
    return [size / 2**20 for size in (sizes.weight_bytes, sizes.kv_bytes, sizes.other_bytes)]
