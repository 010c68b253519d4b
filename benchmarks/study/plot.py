"""What each way of compressing loses as the budget shrinks, and what it leaves of each layer."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from grasp_deploy.report.figure_style import (
    MARKERS,
    SERIES,
    Drawing,
    color_of,
    finished,
    line_handle,
    new_axes,
)
from grasp_deploy.report.plots.shapes import UNITS, kept_drawing
from grasp_deploy.report.plots.study_bars import loss_bars
from grasp_deploy.report.study_tables import budgets, of_study, runs, seeds_in_words, variants
from grasp_deploy.stats.wording import listed

LINES = len(SERIES)  # more could not be told apart
LAYER_LINES = 3  # counts of few groups lie on one another soon
NO_LOSS_NATS = 0.01  # about 1 % of perplexity: a loss this small needs no logarithm
WIDE = 8.0  # times the smallest loss from where on an even axis would flatten it
Row = Mapping[str, Any]


def study_drawings(record: dict[str, Any]) -> Iterator[Drawing]:
    """For each corpus the loss by budget (bars where it is one), then what the best keep where."""
    best = best_variants(record)
    drawn = [name for name in variants(record) if name in best[:LINES]]  # a look each, everywhere
    for corpus in record["dense_perplexity"]:
        if len(budgets(record)) > 1:
            yield _loss_drawing(record, corpus, drawn, len(best[LINES:]))
        else:
            yield loss_bars(record, corpus, _name(corpus))
    if "dense_layers" in record:
        yield from _layer_drawings(record, drawn, best[:LAYER_LINES])


def best_variants(record: Row) -> list[str]:
    """All variants, those that lose least first.

    By the mean over corpora, seeds and those budgets that every variant was measured under; over
    each one's own where there is none.
    """
    shared = _shared_budgets(record)

    def loss(name: str) -> float:
        own = [row for row in record["rows"] if row["variant"] == name]
        some = [row for row in own if row["keep"] in shared] or own
        return statistics.fmean(nats for row in some for nats in row["excess_nats"].values())

    return sorted(variants(record), key=loss)


def _shared_budgets(record: Row) -> list[float]:
    """Those that every variant was measured under, the largest first."""
    names = variants(record)
    return [keep for keep in budgets(record) if all(runs(record, name, keep) for name in names)]


def _loss_drawing(record: Row, corpus: str, drawn: Sequence[str], left_out: int) -> Drawing:
    title = f"Loss on {corpus} by budget: {of_study(record)}"
    rest = f"; {left_out} that lose more {_in_the_mean(record)} are left out" if left_out else ""
    axes = new_axes(title, f"above the dense model's; {seeds_in_words(record)}{rest}")
    handles, values = [], []
    for index, name in enumerate(drawn):
        losses = {
            keep: [row["excess_nats"][corpus] for row in some]
            for keep in budgets(record)
            if (some := runs(record, name, keep))
        }
        means = [statistics.fmean(of_keep) for of_keep in losses.values()]
        spans = zip(means, losses.values(), strict=True)
        below, above = zip(*(ends_of(mean, of) for mean, of in spans), strict=True)
        axes.errorbar(
            list(losses),
            means,
            yerr=(below, above),
            color=color_of(index),
            marker=MARKERS[index % len(MARKERS)],
            capsize=3,
            elinewidth=1.2,
            linewidth=1.4,
        )
        handles.append(line_handle(index, name))
        values += [nats for of_keep in losses.values() for nats in of_keep]
    axes.set_xticks(budgets(record), labels=[f"{keep:g}" for keep in budgets(record)])
    axes.invert_xaxis()
    axes.set_xlabel("share of the prunable cost that is kept")
    axes.set_ylabel("excess loss, nats per token")
    _loss_axis(axes, values)
    return finished(_name(corpus), title, axes, handles)


def _in_the_mean(record: Row) -> str:
    """What variants are ranked by, in words: the budgets where they are not all there are."""
    shared = _shared_budgets(record)
    if shared == budgets(record):
        return "in the mean"
    return f"in the mean at {listed(shared)}" if shared else "in the means over their own budgets"


def ends_of(mean: float, values: Sequence[float]) -> tuple[float, float]:
    """How far values reach below and above their mean, which rounding can put outside of them."""
    return max(0.0, mean - min(values)), max(0.0, max(values) - mean)


def _loss_axis(axes: Axes, values: Sequence[float]) -> None:
    """An even axis from 0; one in tenfolds where the largest loss would flatten the smallest."""
    low, high = min(values), max(values)
    if high <= WIDE * max(low, NO_LOSS_NATS):
        axes.set_ylim(bottom=min(0.0, low * 1.1))
        return
    even = max(NO_LOSS_NATS, -low)  # what is better than the dense model gets no decades of its own
    axes.set_yscale("symlog", linthresh=even, linscale=0.4)
    axes.set_ylabel("nats per token, log scale")
    axes.set_ylim(low / 1.25 if low > NO_LOSS_NATS else min(low * 1.25, 0.0), high * 1.25)
    steps = (1, 2, 5) if low > NO_LOSS_NATS and high < 60 * low else (1, 3)
    sizes = [step * 10.0**power for power in range(-2, 3) for step in steps]
    sizes = [size for size in sizes if size > 0.7 * even]  # others would cover 0
    bottom, top = axes.get_ylim()
    ticks = [tick for tick in (*(-s for s in sizes), 0.0, *sizes) if bottom <= tick <= top]
    axes.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)


def _layer_drawings(record: Row, drawn: Sequence[str], best: Sequence[str]) -> Iterator[Drawing]:
    """The share that each layer keeps of its channels and of its KV groups.

    Of the best variants, under the smallest budget that all of them were measured under.
    """
    shared = [keep for keep in budgets(record) if all(runs(record, name, keep) for name in best)]
    if not shared:
        return
    pruned = [
        (
            index,
            {"name": name, "footprint": {"layers": _mean_layers(runs(record, name, min(shared)))}},
        )
        for index, name in enumerate(drawn)
        if name in best
    ]
    dense = [_layer(*pair) for pair in record["dense_layers"]]
    of = f"{len(variants(record))} variants" + " by the mean" * (len(budgets(record)) > 1)
    note = f"{of_study(record)}, budget {min(shared):g}; the best {len(best)} of {of}"
    for name, (unit, title) in UNITS.items():
        yield kept_drawing(note, dense, pruned, name, unit, title)


def _mean_layers(rows: Sequence[Row]) -> list[dict[str, float]]:
    """Channels and groups of each layer, the mean over seeds."""
    layers = zip(*(row["kept_per_layer"] for row in rows), strict=True)
    return [_layer(*map(statistics.fmean, zip(*pairs, strict=True))) for pairs in layers]


def _layer(channels: float, groups: float) -> dict[str, float]:
    return {UNITS["ffn"][0]: channels, UNITS["kv"][0]: groups}


def _name(corpus: str) -> str:
    letters = (character if character.isalnum() else "-" for character in corpus)
    return f"loss-{''.join(letters)}"
