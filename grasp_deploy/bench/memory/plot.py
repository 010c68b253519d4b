"""Where the memory goes by prompt length, and how many sequences the KV cache holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from grasp_deploy.report.figure_style import (
    INK,
    LEGEND_LINE_INCHES,
    MUTED,
    SURFACE,
    Drawing,
    color_of,
    count_from_zero,
    finished,
    key_handle,
    new_axes,
    patch_handle,
)

PARTS = {
    "weight_bytes": ("darkest: weights", 1.0),
    "kv_bytes": ("lighter: KV cache", 0.62),
    "other_bytes": ("lightest: all the rest", 0.3),
}
GROUP_WIDTH = 0.84
Row = dict[str, Any]


def memory_drawings(record: dict[str, Any]) -> Iterator[Drawing]:
    """One figure for each batch size: bars of weights, KV cache and the rest, model by model."""
    batches = list(dict.fromkeys(cell["batch"] for cell in record["cells"]))
    for batch in batches:
        suffix = f"-batch-{batch}" if len(batches) > 1 else ""
        cells = [cell for cell in record["cells"] if cell["batch"] == batch]
        yield _memory_drawing(record, cells, suffix)


def _memory_drawing(record: dict[str, Any], cells: Sequence[Row], suffix: str) -> Drawing:
    title = "Prefill peak memory by prompt length"
    note = f"batch {cells[0]['batch']:,}; weights, KV cache, and all the rest of the peak"
    axes = new_axes(title, note)
    lengths = sorted({cell["prompt_tokens"] for cell in cells})
    width = GROUP_WIDTH / len(record["models"])
    for index, model in enumerate(record["models"]):
        offset = (index - (len(record["models"]) - 1) / 2) * width
        for cell in (c for c in cells if c["model"] == model["name"]):
            place = lengths.index(cell["prompt_tokens"]) + offset
            _stack(axes, place, 0.92 * width, cell, color_of(index))
    axes.set_xticks(range(len(lengths)), labels=[f"{length:,}" for length in lengths])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("prompt length, tokens")
    axes.set_ylabel("MiB")
    count_from_zero(axes)
    shades = [Patch(color=MUTED, alpha=alpha, label=name) for name, alpha in PARTS.values()]
    predicted = key_handle("predicted", color=INK)
    models = [patch_handle(index, model["name"]) for index, model in enumerate(record["models"])]
    return finished(f"memory{suffix}", title, axes, [*models, *shades, predicted])


def _stack(axes: Axes, place: float, width: float, cell: Row, color: str) -> None:
    """A bar of the measured parts, with a line at the height where each was predicted to end."""
    bottom = predicted_top = 0.0
    for part, (_, alpha) in PARTS.items():
        height = cell["measured"][part] / 2**20
        axes.bar(place, height, width, bottom, color=color, alpha=alpha, linewidth=0)
        bottom += height
        predicted_top += cell["predicted"][part] / 2**20
        axes.hlines(predicted_top, place - width / 2, place + width / 2, color=INK, linewidth=1.3)


def kv_drawings(record: dict[str, Any]) -> Iterator[Drawing]:
    """Horizontal bars of the sequences that fit, context by context."""
    cells, models = record["cells"], record["models"]
    contexts = sorted({cell["context_tokens"] for cell in cells}, reverse=True)
    measured = any(cell["measured"] for cell in cells)
    title = "Sequences that the KV cache holds"
    note = "as the running vLLM reports them" if measured else "predicted from config.json"
    note += "; legend: size of the cache"
    if memory_bytes := record["settings"].get("memory_bytes"):
        note += f" beside the weights in {_memory(memory_bytes)}"
    bars = len(contexts) * len(models)
    axes = new_axes(title, note, 1.3 + 0.24 * bars + LEGEND_LINE_INCHES * len(contexts))
    width = GROUP_WIDTH / len(models)
    for index, model in enumerate(models):
        offset = ((len(models) - 1) / 2 - index) * width
        for cell in (c for c in cells if c["model"] == model["name"]):
            _capacity_bar(axes, contexts.index(cell["context_tokens"]) + offset, width, cell, index)
    names = [f"{context:,}\ntokens" for context in contexts]
    axes.set_yticks(range(len(contexts)), labels=names)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    axes.set_xlabel("sequences at once")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    labels = [_model_label(model["name"], cells) for model in models]
    handles: list[Artist] = [patch_handle(index, label) for index, label in enumerate(labels)]
    if measured:
        handles.append(key_handle("predicted", color=INK))
    yield finished("kv-capacity", title, axes, handles)


def _capacity_bar(axes: Axes, place: float, width: float, cell: Row, index: int) -> None:
    sequences = (cell["measured"] or cell["predicted"])["sequences"]
    predicted = cell["predicted"]["sequences"]
    axes.barh(place, sequences, 0.92 * width, color=color_of(index), linewidth=0)
    if cell["measured"]:
        axes.vlines(predicted, place - 0.46 * width, place + 0.46 * width, color=INK, linewidth=1.3)
    axes.annotate(
        f"{sequences:,}",
        (max(sequences, predicted), place),
        (4, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 0.8},
    )


def _model_label(name: str, cells: Sequence[Row]) -> str:
    pools = sorted({cell["memory_bytes"] for cell in cells if cell["model"] == name})
    return f"{name}: {', '.join(map(_memory, pools))}" if pools else name


def _memory(size_bytes: int) -> str:
    gib = size_bytes / 2**30
    return f"{gib:,.2f} GiB" if gib >= 1 else f"{size_bytes / 2**20:,.1f} MiB"
