"""Figures of a study: the lines and bars are what the rows say, and the good ones stay legible."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")

from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.patches import Rectangle

from benchmarks.study.bars import edge_of, nats_text
from benchmarks.study.plot import best_variants, study_drawings
from grasp_deploy.report.figure_style import Drawing, our_style
from tests.benchmarks.study.records import LOSSES, Losses, study
from tests.report.figures import assert_legible, axes_of, heights_of, legend_of

MANY: Losses = {
    f"variant {i}": {0.8: [0.01 * i], 0.5: [0.03 * i]} for i in (9, 1, 2, 3, 4, 5, 6, 7, 8)
}
ONE_BUDGET: Losses = {
    "default": {0.5: [0.04, 0.06]},
    "much worse than the others": {0.5: [3.0, 5.0]},
    **{f"flap, compensated {i}": {0.5: [0.1 * i, 0.1 * i]} for i in range(1, 8)},
}


def named(losses: Losses = LOSSES, corpora: tuple[str, ...] = ("c4",)) -> dict[str, Drawing]:
    with our_style():
        return {drawing.name: drawing for drawing in study_drawings(study(losses, corpora))}


def bars_of(axes: Axes) -> dict[str, Rectangle]:
    """Bars by the names beside them."""
    names = [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return dict(zip(names, bars, strict=True))


def test_a_line_is_the_mean_over_seeds_and_its_bars_are_their_range() -> None:
    found = named(corpora=("c4", "my text"))
    assert found.keys() == {"loss-c4", "loss-my-text", "kept-ffn", "kept-kv"}
    axes = axes_of(found["loss-c4"])
    default, flap = axes.containers
    assert isinstance(default, ErrorbarContainer) and isinstance(flap, ErrorbarContainer)
    assert list(default.lines[0].get_xdata()) == [0.8, 0.5]
    assert list(default.lines[0].get_ydata()) == pytest.approx([0.03, 0.25])
    assert list(flap.lines[0].get_ydata()) == pytest.approx([0.1, 1.0])
    ends = [path[:, 1].tolist() for path in default.lines[2][0].get_segments()]
    assert ends == [pytest.approx([0.02, 0.04]), pytest.approx([0.2, 0.3])]
    left, right = axes.get_xlim()
    assert left > 0.8 > 0.5 > right, "from the dense model's side to the smallest budget"
    assert legend_of(found["loss-c4"]) == ["default", "flap"]
    assert "mean and range of 2 seeds" in axes.get_title(loc="left")


def test_only_the_best_are_drawn_and_the_note_counts_the_rest() -> None:
    drawing = named(MANY)["loss-c4"]
    assert legend_of(drawing) == [f"variant {i}" for i in range(1, 8)]
    note = " ".join(axes_of(drawing).get_title(loc="left").split())
    assert "2 that lose more in the mean are left out" in note and "one seed" in note


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"more": {0.5: [0.9]}}, "3 that lose more in the mean at 0.5 are left out"),
        ({"more": {0.4: [0.9]}}, "3 that lose more in the means over their own budgets are"),
        ({"default": {0.8: [0], 0.6: [0], 0.5: [0]}}, "in the mean at 0.8 and 0.5 are left out"),
    ],
)
def test_the_note_tells_the_budgets_of_the_mean_where_some_lack_others(
    changes: Losses, words: str
) -> None:
    drawing = named({**MANY, **changes})["loss-c4"]
    assert words in " ".join(axes_of(drawing).get_title(loc="left").split())


def test_variants_are_compared_under_the_budgets_that_all_have() -> None:
    half_done: Losses = {"a": {0.8: [0.1], 0.5: [3.0]}, "b": {0.8: [0.2]}}
    assert best_variants(study(half_done)) == ["a", "b"]
    nothing_shared: Losses = {"a": {0.8: [0.3]}, "b": {0.5: [0.2]}}
    assert best_variants(study(nothing_shared)) == ["b", "a"]


@pytest.mark.parametrize("best", [0.05, 0.0, -0.02])
def test_a_bad_variant_does_not_flatten_a_good_one(best: float) -> None:
    losses: Losses = {"default": {0.8: [best], 0.5: [0.1]}, "random": {0.8: [1.0], 0.5: [3.0]}}
    axes = axes_of(named(losses)["loss-c4"])
    low, middle, high = axes.transData.transform([(0.5, v) for v in (best, 0.1, 3.0)])[:, 1]
    assert middle - low > 0.1 * (high - low)
    bottom, top = axes.get_ylim()
    assert bottom <= best and top > 3
    assert {0.1, 1.0} <= set(axes.get_yticks())


def test_what_beats_the_dense_model_takes_little_of_the_axis() -> None:
    losses: Losses = {"default": {0.8: [-0.04], 0.5: [0.5]}, "flap": {0.8: [0.05], 0.5: [3.0]}}
    axes = axes_of(named(losses)["loss-c4"])
    bottom, nothing, top = axes.transData.transform([(0.5, v) for v in (-0.04, 0.0, 3.0)])[:, 1]
    assert nothing - bottom < 0.25 * (top - bottom)
    assert [tick for tick in axes.get_yticks() if tick < 0.1] == pytest.approx([-0.03, 0, 0.03])


def test_an_even_axis_where_losses_are_of_one_size() -> None:
    assert axes_of(named({"a": {0.8: [0.1], 0.5: [0.5]}})["loss-c4"]).get_yscale() == "linear"


def test_one_budget_makes_bars_with_the_best_on_top() -> None:
    axes = axes_of(named(ONE_BUDGET)["loss-c4"])
    bars = bars_of(axes)
    assert list(bars)[-1] == "default" and next(iter(bars)) == "much worse than the others"
    assert bars["default"].get_width() == pytest.approx(0.05)
    assert bars["flap, compensated 7"].get_width() == pytest.approx(0.7)
    # the best seven are 0.05 and 0.1 to 0.6, so bars end at three times 0.3
    assert bars["much worse than the others"].get_width() == pytest.approx(0.9)
    assert {text.get_text() for text in axes.texts} >= {"0.050", "4.000"}
    assert "paler bars are cut" in " ".join(axes.get_title(loc="left").split())


def test_no_bar_is_cut_for_little() -> None:
    assert edge_of([0.1, 0.2, 0.3]) == math.inf
    assert edge_of([0.1, 0.2, 0.8]) == math.inf
    assert edge_of([0.1, 0.2, 0.95]) == pytest.approx(0.6)
    assert edge_of([-0.2, -0.1, 0.3]) == math.inf


def test_bars_of_other_lengths_have_other_figures() -> None:
    axes = axes_of(named({"a": {0.5: [0.0026]}, "b": {0.5: [0.0034]}})["loss-c4"])
    assert [text.get_text() for text in axes.texts] == ["0.0034", "0.0026"]
    shown = [nats_text(nats) for nats in (0.0, 4.0, 0.0123, 0.00999, -0.00031, 0.00002)]
    assert shown == ["0.000", "4.000", "0.012", "0.0100", "-0.00031", "2.0e-05"]


def test_bars_of_losses_below_nothing() -> None:
    axes = axes_of(named({"healed": {0.5: [-0.2]}, "other": {0.5: [-0.1]}})["loss-c4"])
    left, right = axes.get_xlim()
    assert left < -0.2 and right > 0


def test_what_layers_keep_under_the_smallest_budget() -> None:
    found = named({**MANY, "default": {0.8: [0.0, 0.0], 0.5: [0.0, 0.0]}})
    assert legend_of(found["kept-ffn"])[:3] == [
        "variant 1: 53.3%",
        "variant 2: 53.3%",
        "default: 56.7%",
    ]
    # the mean of 4 and 6 of 10 channels, and 12 of 20; 2 and 4 groups of 4
    assert heights_of(found["kept-ffn"], 4) == pytest.approx([0.5, 0.6])
    assert heights_of(found["kept-kv"], 4) == pytest.approx([0.5, 1.0])
    assert "budget 0.5" in axes_of(found["kept-ffn"]).get_title(loc="left")


@pytest.mark.parametrize(
    "losses",
    [MANY, ONE_BUDGET, {"M" * 70: {0.5: [0.1]}}, {"a": {0.5: [-0.00012]}, "b": {0.5: [-0.00034]}}],
)
def test_no_label_is_cut_or_covers_another(losses: Losses) -> None:
    corpora = ("c4", "a corpus with a long name and a date 2026-01-02")
    for drawing in named(losses, corpora).values():
        assert_legible(drawing)
