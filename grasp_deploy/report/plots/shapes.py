"""What each layer keeps, and what perplexity the remaining bytes buy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from grasp_deploy.report.figure_style import (
    DOTTED,
    MARKERS,
    MUTED,
    Drawing,
    color_of,
    count_from_zero,
    finished,
    key_handle,
    line_handle,
    new_axes,
)

UNITS = {
    "ffn": ("intermediate_size", "Kept FFN channels"),
    "kv": ("num_key_value_heads", "Kept KV heads"),
}


def kept_drawings(record: dict[str, Any]) -> Iterator[Drawing]:
    """The share that each layer keeps of the first model's FFN channels and of its KV heads.

    Nothing for models of another depth than the first, or if no model keeps less than it.
    """
    dense = record["models"][0]["footprint"]["layers"]
    pruned = [
        (index, model)
        for index, model in enumerate(record["models"])
        if len(model["footprint"]["layers"]) == len(dense)
        and index > 0
        and model["footprint"]["layers"] != dense
    ]
    for name, (unit, title) in UNITS.items():
        if pruned:
            note = f"share of what {record['models'][0]['name']} has"
            yield kept_drawing(note, dense, pruned, name, unit, title)


def kept_drawing(
    note: str,
    dense: Sequence[Mapping[str, float]],
    pruned: Sequence[tuple[int, Mapping[str, Any]]],
    name: str,
    unit: str,
    title: str,
) -> Drawing:
    """The share that each layer keeps of the dense one's units, a line each `(index, model)`."""
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


def quality_drawings(record: dict[str, Any]) -> Iterator[Drawing]:
    """For each corpus the perplexity against the weight bytes, and who is not beaten in both."""
    for corpus in dict.fromkeys(cell["corpus"] for cell in record["cells"]):
        points = [
            (index, model, cell["perplexity"])
            for index, model in enumerate(record["models"])
            for cell in record["cells"]
            if cell["corpus"] == corpus and cell["model"] == model["name"]
        ]
        yield _pareto_drawing(str(corpus), points)


def _pareto_drawing(corpus: str, points: Sequence[tuple[int, dict[str, Any], float]]) -> Drawing:
    title = f"Perplexity on {corpus} against weight bytes"
    axes = new_axes(title, "lower and further left is better")
    handles: list[Line2D] = []
    places = []
    for index, model, perplexity in points:
        mib = model["footprint"]["weight_bytes"] / 2**20
        marker = MARKERS[index % len(MARKERS)]
        axes.plot(mib, perplexity, color=color_of(index), marker=marker, markersize=9)
        handle = line_handle(index, f"{model['name']}: {perplexity:,.2f} at {mib:,.1f} MiB")
        handle.set_linestyle("none")
        handles.append(handle)
        places.append((mib, perplexity))
    front = pareto_front(places)
    axes.plot(*zip(*front, strict=True), color=MUTED, linewidth=1.2, zorder=1)
    handles.append(key_handle("no model is better in both"))
    axes.margins(0.12)
    perplexities = [perplexity for _, perplexity in places]
    if max(perplexities) > 10 * min(perplexities):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    else:
        count_from_zero(axes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("weights, MiB")
    axes.set_ylabel("perplexity")
    name = "".join(character if character.isalnum() else "-" for character in corpus)
    return finished(f"pareto-{name}", title, axes, handles)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other is below in both coordinates, from left to right."""
    front: list[tuple[float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
