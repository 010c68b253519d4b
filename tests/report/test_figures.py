"""Figures of what layers keep: shares of the first model, and none where nothing differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")

from grasp_deploy.report.figures import layer_groups
from tests.report.figures import heights_of, legend_of
from tests.report.sections import full_section, model

DENSE = model("dense", 10, 20)


def test_kept_shares_layer_by_layer_and_in_all() -> None:
    section = replace(full_section(), models=[DENSE, model("pruned", 5, 20)])
    ((_, (channels, _)),) = layer_groups([section])
    assert heights_of(channels, 0) == pytest.approx([0.5, 1.0])
    assert legend_of(channels)[0] == f"pruned: {25 / 30:.1%}"


@pytest.mark.parametrize("other", [model("same", 10, 20), model("shallow", 5)])
def test_nothing_is_drawn_where_no_layer_can_be_compared(other: dict[str, object]) -> None:
    assert list(layer_groups([replace(full_section(), models=[DENSE, other])])) == []
