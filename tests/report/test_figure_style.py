"""Figures look the same everywhere, and no label is cut or hidden by another."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")


from grasp_deploy.report.figure_style import our_style
from grasp_deploy.report.figures import figure_groups
from tests.report.figures import assert_legible, heights_of, legend_of
from tests.report.sections import drawing, full_section, model

LONG = ("a-7b-model-with-a-long-name-and-a-date-2026-01-02", "M" * 70)


@pytest.mark.parametrize("names", [LONG, ("_hidden", "$a_{b}$ <b>&amp; [red]")])
def test_the_legend_names_every_model_as_it_is(names: tuple[str, str]) -> None:
    with our_style():
        made = drawing(labels=names)
    assert_legible(made)
    legend = "".join(legend_of(made)).replace("\n", "").replace(" ", "")
    assert all(name.replace(" ", "") in legend for name in names)


def test_kept_shares_layer_by_layer_and_in_all_where_a_layer_can_be_compared() -> None:
    dense = model("dense", 10, 20)
    section = replace(full_section(), models=[dense, model("pruned", 5, 20)])
    _, (_, _, (channels, _)) = figure_groups([section])
    assert heights_of(channels, 0) == pytest.approx([0.5, 1.0])
    assert legend_of(channels)[0] == f"pruned: {25 / 30:.1%}"
    for other in (model("same", 10, 20), model("shallow", 5)):
        assert len(list(figure_groups([replace(full_section(), models=[dense, other])]))) == 1
