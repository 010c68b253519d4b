"""Figures of a study: the lines are what the rows say, and the good ones stay legible."""

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")

from matplotlib.container import ErrorbarContainer

from benchmarks.study.plot import best_variants, study_drawings
from grasp_deploy.report.figure_style import our_style
from grasp_deploy.report.section import Drawing
from tests.benchmarks.study.records import LOSSES, Losses, study, with_tasks
from tests.report.figures import assert_legible, axes_of, heights_of, legend_of

MANY: Losses = {
    f"variant {i}": {0.8: [0.01 * i], 0.5: [0.03 * i]} for i in (9, 1, 2, 3, 4, 5, 6, 7, 8)
}


def named(losses: Losses = LOSSES, corpora: tuple[str, ...] = ("c4",)) -> dict[str, Drawing]:
    with our_style():
        return {drawing.name: drawing for drawing in study_drawings(study(losses, corpora))}


def test_a_line_is_the_mean_over_seeds_and_its_bars_are_their_range() -> None:
    found = named(corpora=("c4", "my text"))
    assert found.keys() == {"loss-c4", "loss-my-text", "loss-mean", "kept-ffn", "kept-kv"}
    axes = axes_of(found["loss-c4"])
    default, flap = axes.containers
    assert isinstance(default, ErrorbarContainer) and isinstance(flap, ErrorbarContainer)
    assert list(default.lines[0].get_xdata()) == [0.8, 0.5]
    assert list(default.lines[0].get_ydata()) == pytest.approx([0.03, 0.25])
    ends = [path[:, 1].tolist() for path in default.lines[2][0].get_segments()]
    assert ends == [pytest.approx([0.02, 0.04]), pytest.approx([0.2, 0.3])]
    left, right = axes.get_xlim()
    assert left > 0.8 > 0.5 > right, "from the dense model's side to the smallest budget"
    assert legend_of(found["loss-c4"]) == ["default", "flap"]
    assert "mean and range of 2 seeds" in axes.get_title(loc="left")


def test_the_mean_of_texts_and_the_accuracy_on_tasks_have_figures() -> None:
    made = with_tasks(study(corpora=("c4", "code")), {"piqa": "acc"}, [0.6, 0.5, 0.4, 0.3])
    made.rows[0].excess_nats["code"] = 0.06
    with our_style():
        found = {drawing.name: drawing for drawing in study_drawings(made)}
    (line, *_), accuracy = axes_of(found["loss-mean"]).containers, axes_of(found["accuracy"])
    assert isinstance(line, ErrorbarContainer) and isinstance(
        accuracy.containers[0], ErrorbarContainer
    )
    assert list(line.lines[0].get_ydata()) == pytest.approx([0.04, 0.25])
    assert list(accuracy.containers[0].lines[0].get_ydata()) == pytest.approx([45, 30])
    assert legend_of(found["accuracy"]) == ["dense", "default"], "flap was put to no task"
    assert_legible(found["accuracy"])


def test_only_the_best_are_drawn_and_the_note_counts_the_rest() -> None:
    drawing = named(MANY)["loss-c4"]
    assert legend_of(drawing) == [f"variant {i}" for i in range(1, 8)]
    note = " ".join(axes_of(drawing).get_title(loc="left").split())
    assert "2 that lose more in the mean are left out" in note and "one seed" in note
    # Variants are compared under the budgets that all have, or else each under its own.
    assert best_variants(study({"a": {0.8: [0.1], 0.5: [3.0]}, "b": {0.8: [0.2]}})) == ["a", "b"]
    assert best_variants(study({"a": {0.8: [0.3]}, "b": {0.5: [0.2]}})) == ["b", "a"]


def test_what_layers_keep_under_the_smallest_budget() -> None:
    found = named({**MANY, "default": {0.8: [0.0, 0.0], 0.5: [0.0, 0.0]}})
    first, second, third = legend_of(found["kept-ffn"])[:3]
    assert (first, second, third) == ("variant 1: 53.3%", "variant 2: 53.3%", "default: 56.7%")
    # the mean of 4 and 6 of 10 channels, and 12 of 20; 2 and 4 groups of 4
    assert heights_of(found["kept-ffn"], 4) == pytest.approx([0.5, 0.6])
    assert heights_of(found["kept-kv"], 4) == pytest.approx([0.5, 1.0])
    assert "budget 0.5" in axes_of(found["kept-ffn"]).get_title(loc="left")
