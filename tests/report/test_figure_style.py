"""Figures look the same everywhere, and no label is cut or hidden by another."""

from __future__ import annotations

import io
import re
from itertools import pairwise

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")

import matplotlib as mpl
from matplotlib import image

from grasp_deploy.report.figure_style import SERIES, color_of, our_style, png, svg
from tests.report.figures import assert_legible, legend_of
from tests.report.sections import drawing

NAMES = {
    "short": ("dense", "pruned"),
    "long": ("a-7b-model-with-a-long-name-and-a-date-2026-01-02", "M" * 70),
    "odd": ("_hidden", "$a_{b}$ <b>&amp; [red]"),
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_the_legend_names_every_model_as_it_is(names: tuple[str, str]) -> None:
    with our_style():
        made = drawing(labels=names)
    assert_legible(made)
    legend = "".join(legend_of(made)).replace("\n", "").replace(" ", "")
    assert all(name.replace(" ", "") in legend for name in names)


def test_colours_differ_and_go_round() -> None:
    drawn = [color_of(index) for index in range(20)]
    assert drawn.count(SERIES[0]) == 1  # the first model's alone
    assert all(a != b for a, b in pairwise(drawn))


def test_svg_is_for_a_page() -> None:
    with our_style():
        text, again = (svg(drawing()).decode() for _ in range(2))
    assert text == again, "the same record gives the same page"
    assert "<script" not in text and not re.search(r'href="(?!#)', text)
    assert "#ffffff" not in text, "without ground, so that a dark page shows through"


def test_the_users_own_settings_neither_change_nor_matter() -> None:
    with our_style():
        expected = png(drawing())
    pixels = image.imread(io.BytesIO(expected))
    assert pixels.shape[1] == 900 and pixels.std() > 0.05, "a picture that is not empty"
    with mpl.rc_context({"axes.grid": False, "text.color": "red", "figure.dpi": 33}):
        before = dict(mpl.rcParams)
        with our_style():
            assert png(drawing()) == expected
        assert dict(mpl.rcParams) == before
