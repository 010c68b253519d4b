"""Throughput against batch size, and its ratio to the first model with the ideal beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes

from grasp_deploy.bench.throughput.verdict import QUANTITIES, SETTING, rates
from grasp_deploy.bench.verdicts import verdicts
from grasp_deploy.report.figure_style import (
    DASHED,
    INK,
    MARKERS,
    Drawing,
    color_of,
    count_from_zero,
    finished,
    key_handle,
    line_handle,
    new_axes,
    powers_of_two,
)
from grasp_deploy.stats.quartiles import spread

TITLES = {
    "throughput": "Output tokens per second",
    "prefill": "Prompt tokens per second of the prefill",
    "decode": "Tokens per second of decoding",
}
RATIO_TITLES = {
    "throughput": "Throughput against the first model",
    "prefill": "Prefill speed against the first model",
    "decode": "Decode speed against the first model",
}
Row = dict[str, Any]


def throughput_drawings(record: dict[str, Any]) -> Iterator[Drawing]:
    """For each setting and quantity: tokens per second, then the ratio to the first model."""
    settings = list(dict.fromkeys(tuple(cell[k] for k in SETTING) for cell in record["cells"]))
    judged = verdicts(record)
    for number, setting in enumerate(settings):
        suffix = f"-{number + 1}" if len(settings) > 1 else ""
        cells = [cell for cell in record["cells"] if _setting(cell) == setting and cell["samples"]]
        rows = [row for row in judged if _setting(row) == setting]
        for quantity in QUANTITIES:
            some = [cell for cell in cells if rates(cell, quantity)]
            if some:
                yield _rate_drawing(record, some, quantity, suffix)
            ratios = [row for row in rows if row["quantity"] == quantity]
            if ratios:
                yield _ratio_drawing(record, ratios, quantity, suffix)


def _setting(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in SETTING)


def _setting_in_words(row: Row) -> str:
    return (
        f"{row['engine']}, {row['prompt_tokens']:,} prompt tokens and {row['new_tokens']:,} new "
        "tokens in each sequence"
    )


def _rate_drawing(
    record: dict[str, Any], cells: Sequence[Row], quantity: str, suffix: str
) -> Drawing:
    title = TITLES[quantity]
    repetitions = len(cells[0]["samples"])
    bars = f"median and quartiles of {repetitions} repetitions" if repetitions > 1 else "one run"
    axes = new_axes(title, f"{_setting_in_words(cells[0])}; {bars}")
    handles = []
    for index, model in enumerate(record["models"]):
        points = sorted((c["batch"], rates(c, quantity)) for c in cells if _is_of(c, model))
        if not points:
            continue
        spreads = [spread(samples) for _, samples in points]
        _line(
            axes,
            index,
            [batch for batch, _ in points],
            [s["median"] for s in spreads],
            [s["quartiles"] for s in spreads],
        )
        handles.append(line_handle(index, model["name"]))
    axes.set_ylabel("tokens per second")
    axes.set_xlabel("batch size, sequences")
    powers_of_two(axes, [cell["batch"] for cell in cells])
    count_from_zero(axes)
    return finished(f"{quantity}{suffix}", title, axes, handles)


def _ratio_drawing(
    record: dict[str, Any], rows: Sequence[Row], quantity: str, suffix: str
) -> Drawing:
    title = RATIO_TITLES[quantity]
    axes = new_axes(title, f"{_setting_in_words(rows[0])}; bars: 95 % interval")
    axes.axhline(1, color=INK, linewidth=1.2)
    handles = []
    present = [m for m in record["models"] if any(_is_of(row, m) for row in rows)]
    for place, model in enumerate(present):
        some = sorted((r for r in rows if _is_of(r, model)), key=lambda row: row["batch"])
        index = record["models"].index(model)
        shift = 2 ** (0.09 * (place - (len(present) - 1) / 2))  # bars stand side by side
        batches = [row["batch"] * shift for row in some]
        ends = [row["interval"] or [row["ratio"]] * 2 for row in some]
        _line(axes, index, batches, [row["ratio"] for row in some], ends)
        if all(row["ideal"] for row in some):
            ideals = [row["ideal"] for row in some]
            axes.plot(batches, ideals, color=color_of(index), linestyle=DASHED, linewidth=1.3)
        handles.append(line_handle(index, model["name"]))
    handles.append(key_handle(rows[0]["baseline"], color=INK))
    if any(row["ideal"] for row in rows):
        what = "operations" if quantity == "prefill" else "bytes moved"
        what = "bytes moved and operations" if quantity == "throughput" else what
        handles.append(key_handle(f"ideal: the ratio of {what}", DASHED))
    axes.set_ylabel("times the first model")
    axes.set_xlabel("batch size, sequences")
    powers_of_two(axes, [row["batch"] for row in rows])
    _keep_one_in_sight(axes)
    return finished(f"{quantity}-ratio{suffix}", title, axes, handles)


def _line(
    axes: Axes,
    index: int,
    batches: Sequence[float],
    middles: Sequence[float],
    ends: Sequence[Sequence[float]],
) -> None:
    below = [middle - low for middle, (low, _) in zip(middles, ends, strict=True)]
    above = [high - middle for middle, (_, high) in zip(middles, ends, strict=True)]
    axes.errorbar(
        batches,
        middles,
        yerr=(below, above),
        color=color_of(index),
        marker=MARKERS[index % len(MARKERS)],
        capsize=3,
        elinewidth=1.2,
    )


def _keep_one_in_sight(axes: Axes) -> None:
    """Room above and below, so that a ratio of 1 is no edge of the plot."""
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.9), max(high, 1.1))


def _is_of(row: Row, model: dict[str, Any]) -> bool:
    return bool(row["model"] == model["name"])
