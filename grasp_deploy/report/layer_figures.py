"""Figures of the share of channels and KV heads that each layer keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator, PercentFormatter

from grasp_deploy.report.figure_style import (
    DOTTED,
    MARKERS,
    Drawing,
    color_of,
    finished,
    key_handle,
    line_handle,
    new_axes,
)

UNITS = {
    "ffn": ("intermediate_size", "Kept FFN channels"),
    "kv": ("num_key_value_heads", "Kept KV heads"),
}


def kept_drawings(models: Sequence[Mapping[str, Any]]) -> Iterator[Drawing]:
    """The share that each layer keeps of the first model's FFN channels and of its KV heads.

    Yields nothing if no other model of the same depth keeps less than the first.
    """
    dense = models[0]["footprint"]["layers"]
    pruned = [
        (index, model)
        for index, model in enumerate(models)
        if len(model["footprint"]["layers"]) == len(dense)
        and index > 0
        and model["footprint"]["layers"] != dense
    ]
    for name, (unit, title) in UNITS.items():
        if pruned:
            note = f"share of what {models[0]['name']} has"
            yield kept_drawing(note, dense, pruned, name, unit, title)


def kept_drawing(
    note: str,
    dense: Sequence[Mapping[str, float]],
    pruned: Sequence[tuple[int, Mapping[str, Any]]],
    name: str,
    unit: str,
    title: str,
) -> Drawing:
    """The share of the dense layers' units that each layer keeps, one line per `(index, model)`."""
    total = sum(layer[unit] for layer in dense)
    title = f"{title}, layer by layer"
    axes = new_axes(title, f"{note}; legend: of all layers together")
    handles = []
    for index, model in pruned:
        layers = model["footprint"]["layers"]
        shares = [after[unit] / before[unit] for before, after in zip(dense, layers, strict=True)]
        (line,) = axes.plot(shares, color=color_of(index), linewidth=1.3, markersize=3.5)
        line.set_marker(MARKERS[index % len(MARKERS)])
        share = sum(layer[unit] for layer in layers) / total
        axes.axhline(share, color=color_of(index), linewidth=1, linestyle=DOTTED)
        handles.append(line_handle(index, f"{model['name']}: {share:.1%}"))
    handles.append(key_handle("all layers together", DOTTED))
    axes.set_ylim(0, max(1.05, axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer")
    axes.set_ylabel("kept share")
    return finished(f"kept-{name}", title, axes, handles)
