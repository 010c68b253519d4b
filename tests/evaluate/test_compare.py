"""Records of comparisons: the texts that count, and what is no whole record."""

from typing import Any

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.table import loss_table, tables
from tests.bench.records import lines_of, model, record, row_of, typed


def comparison(losses: dict[str, tuple[float, float]], calibrated_on: str = "") -> dict[str, Any]:
    """Two models with these losses by text, the second one calibrated on a text."""
    cells = [
        {
            "model": name,
            "perplexity": 2.0,
            "loss_nats_per_token": loss,
            "standard_error": 0.1,
            "tokens": 1000,
            "data": {"name": text},
            "excess_nats": loss - pair[0],
            "excess_error": 0.03,
            "calibrated_on_share": float(text == calibrated_on and name == "pruned"),
            "divergence": 0.25,
            "agreement": 0.875,
        }
        for text, pair in losses.items()
        for name, loss in zip(("dense", "pruned"), pair, strict=True)
    ]
    return record("compare", [model("dense"), model("pruned", 0.5)], cells=cells)


def test_text_that_was_calibrated_on_counts_only_alone() -> None:
    losses = {"c4": (2.0, 2.2), "novel": (3.0, 3.6), "seen": (2.0, 2.0)}
    found = typed(comparison(losses, calibrated_on="seen"))
    assert [point.loss for point in found.points] == pytest.approx([2.5, 2.9])
    assert found.points[1].error == pytest.approx(0.03 * 2**0.5 / 2)
    assert found.text == "2,000 tokens of c4 and novel"
    lines = lines_of(loss_table(found), width=80)
    assert row_of(lines, "pruned", "+0.200 ± 0.030", "0.250", "87.5")
    assert row_of(lines, "pruned†") and not any("dense†" in line for line in lines)
    alone = typed(comparison({"seen": losses["seen"]}, calibrated_on="seen"))
    assert alone.text == "1,000 tokens of seen, calibrated on"
    assert "+0.000" in str(lines_of(loss_table(alone)))


@pytest.mark.parametrize("part", ["cells", "said"])
def test_a_text_or_a_prompt_without_one_of_the_models(part: str) -> None:
    damaged = comparison({"c4": (2.0, 2.2), "novel": (3.0, 3.6)})
    damaged["said"] = [{"prompt": "The sky is", "answers": ["blue", "green"]}]
    _, table = tables(typed(damaged))
    assert row_of(lines_of(table, width=80), "pruned", "green")
    (damaged["cells"] if part == "cells" else damaged["said"][0]["answers"]).pop()
    with pytest.raises(InputError, match="not one for each model"):
        typed(damaged)
