"""Figures of a study: the loss by budget, and what the best variants keep."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from msgspec import UNSET

from benchmarks.study.record import Accuracy, Row, Study
from benchmarks.study.tables import seeds_in_words, study_title
from grasp_deploy.report.figure_style import (
    DASHED,
    MUTED,
    SERIES,
    finished,
    key_handle,
    line_handle,
    look_of,
    new_axes,
)
from grasp_deploy.report.figures import UNITS, kept_drawing
from grasp_deploy.report.section import Drawing

LINES = len(SERIES)  # more could not be told apart
LAYER_LINES = 3  # counts of few groups lie on one another soon


def study_drawings(study: Study) -> Iterator[Drawing]:
    """The loss by budget where there are several, and what layers keep."""
    best = best_variants(study)
    drawn = [name for name in study.variants if name in best[:LINES]]  # one look in all figures
    if len(study.budgets) > 1:
        corpora = study.dense_perplexity
        for corpus in corpora:
            yield _loss_drawing(study, corpus, drawn, partial(_excess_on, corpus))
        if len(corpora) > 1:
            mean = _loss_drawing(study, f"{len(corpora)} texts, mean,", drawn, mean_excess)
            yield replace(mean, name="loss-mean")
        if study.dense_task_average is not UNSET:
            yield _accuracy_drawing(study, study.dense_task_average, drawn)
    yield from _layer_drawings(study, drawn, best[:LAYER_LINES])


def best_variants(study: Study) -> list[str]:
    """All variants, those that lose least first.

    Ranked by the mean over corpora, seeds and the budgets that every variant was measured under;
    over each variant's own budgets without shared ones.
    """
    shared = _shared_budgets(study, study.variants)

    def loss(name: str) -> float:
        own = [row for row in study.rows if row.variant == name]
        return statistics.fmean(map(mean_excess, [row for row in own if row.keep in shared] or own))

    return sorted(study.variants, key=loss)


def mean_excess(row: Row) -> float:
    """The loss above the dense model's, nats per token: the mean over kinds of text."""
    return statistics.fmean(row.excess_nats.values())


def _excess_on(corpus: str, row: Row) -> float:
    return row.excess_nats[corpus]


def _shared_budgets(study: Study, variants: Sequence[str]) -> list[float]:
    """The budgets that all of these variants were measured under, the largest first."""
    return [k for k in study.budgets if all(study.runs(name, k) for name in variants)]


def _loss_drawing(
    study: Study, text: str, drawn: Sequence[str], value: Callable[[Row], float]
) -> Drawing:
    title = f"Loss on {text} by budget: {study_title(study)}"
    axes = new_axes(title, f"above the dense model's; {_notes(study, drawn)}")
    handles = _lines_by_budget(axes, study, drawn, value)
    axes.axhline(0, color=MUTED, linewidth=1)
    axes.set_ylabel("excess loss, nats per token")
    name = "".join(letter if letter.isalnum() else "-" for letter in text)
    return finished(f"loss-{name}", title, axes, handles)


def _accuracy_drawing(study: Study, dense: Accuracy, drawn: Sequence[str]) -> Drawing:
    title = f"Accuracy on tasks by budget: {study_title(study)}"
    axes = new_axes(title, f"average of the tasks; {_notes(study, drawn)}")
    handles = _lines_by_budget(axes, study, drawn, _accuracy)
    axes.axhline(100 * dense.accuracy, color="0.5", linestyle=DASHED, linewidth=1.2)
    axes.set_ylabel("accuracy, %")
    return finished("accuracy", title, axes, [key_handle("dense", DASHED), *handles])


def _accuracy(row: Row) -> float | None:
    return None if row.task_average is UNSET else 100 * row.task_average.accuracy


def _notes(study: Study, drawn: Sequence[str]) -> str:
    """The seeds behind a figure, and how many variants it leaves out."""
    left_out = len(study.variants) - len(drawn)
    rest = f"; {left_out} that lose more in the mean are left out" if left_out else ""
    return f"{seeds_in_words(study)}{rest}"


def _lines_by_budget(
    axes: Axes, study: Study, drawn: Sequence[str], value: Callable[[Row], float | None]
) -> list[Line2D]:
    """Draw a line of values by budget for each variant that has some; returns their handles."""
    handles = []
    for index, name in enumerate(drawn):
        found = {keep: [value(row) for row in study.runs(name, keep)] for keep in study.budgets}
        known = {
            keep: of for keep, rows in found.items() if (of := [v for v in rows if v is not None])
        }
        if known:
            _draw_losses(axes, known, index)
            handles.append(line_handle(index, name))
    axes.set_xticks(study.budgets, labels=[f"{keep:g}" for keep in study.budgets])
    axes.invert_xaxis()
    axes.set_xlabel("share of the prunable cost that is kept")
    return handles


def _draw_losses(axes: Axes, losses: dict[float, list[float]], index: int) -> None:
    """Draw a line through the means of the losses at each place, with their range as bars."""
    means = [statistics.fmean(of_place) for of_place in losses.values()]
    # Rounding may put a mean outside of equal losses.
    below = [max(0.0, m - min(ls)) for m, ls in zip(means, losses.values(), strict=True)]
    above = [max(0.0, max(ls) - m) for m, ls in zip(means, losses.values(), strict=True)]
    axes.errorbar(
        list(losses),
        means,
        yerr=(below, above),
        **look_of(index),
        linestyle="-",
        capsize=3,
        elinewidth=1.2,
        linewidth=1.4,
    )


def _layer_drawings(study: Study, drawn: Sequence[str], best: Sequence[str]) -> Iterator[Drawing]:
    shared = _shared_budgets(study, best)
    if not shared:
        return
    keep = min(shared)
    pruned = {
        index: (name, _mean_layers(study.runs(name, keep)))
        for index, name in enumerate(drawn)
        if name in best
    }
    dense = [_layer(*pair) for pair in study.dense_layers]
    ranked = f"{len(study.variants)} variants" + " by the mean" * (len(study.budgets) > 1)
    note = f"{study_title(study)}, budget {keep:g}; the best {len(best)} of {ranked}"
    for name in ("ffn", "kv"):
        yield kept_drawing(name, note, dense, pruned)


def _mean_layers(rows: Sequence[Row]) -> list[dict[str, float]]:
    layers = zip(*(row.kept_per_layer for row in rows), strict=True)
    return [_layer(*map(statistics.fmean, zip(*pairs, strict=True))) for pairs in layers]


def _layer(channels: float, groups: float) -> dict[str, float]:
    return {UNITS["ffn"][0]: channels, UNITS["kv"][0]: groups}
