"""What a model card says of quality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.checkpoint.card.model_card import model_card
from grasp_deploy.checkpoint.card.quality_verdict import quality_verdict
from grasp_deploy.checkpoint.format.shapes import dense_shape, model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from tests.evaluate.quality.rows import corpus, task

Rows = list[dict[str, Any]]
Section = Callable[..., list[str]]


@pytest.fixture
def section(demo_checkpoint: Path) -> Section:
    """Draw the lines of a card that stand under its heading of quality."""
    plan, config = load_plan(demo_checkpoint / PLAN_FILE), read_config(demo_checkpoint)

    def lines(corpora: Rows, tasks: Rows, healed_on: Sequence[str] = ()) -> list[str]:
        verdict = quality_verdict(corpora, tasks, bool(healed_on))
        quality = {"verdict": verdict, "corpora": corpora, "tasks": tasks, "healed_on": healed_on}
        card = model_card(plan, dense_shape(config), model_shape(config), quality)
        return card.partition("## Quality\n\n")[2].partition("\n\nCalibrated")[0].splitlines()

    return lines


def test_dense_beside_pruned(section: Section) -> None:
    lines = section([corpus("c4", 0.0953102, error=0.004)], [task("piqa", 0.8, 0.7, num_fewshot=5)])
    assert lines[0].startswith(
        "**Needs healing**: on c4, text that it was not calibrated on, it loses"
    )
    # exp(0.0953102) is 1.1.
    assert "| c4 (test) | 20,470 in blocks of 2,048 | 8.00 | 8.80 | 0.095 ± 0.004 |" in lines
    assert (
        "| piqa (acc_norm, 5 examples) | 2,500 | 25.0 | 80.0 ± 1.0 | 70.0 ± 1.0 | -10.0 ± 1.0 |"
        in lines
    )


def test_what_was_calibrated_on_is_marked_and_explained(section: Section) -> None:
    lines = section([corpus("c4", 0.2, True), corpus("a|b", 0.2)], [])
    assert any(line.startswith("| c4 (test)† |") for line in lines)
    assert any(line.startswith("| a\\|b (test) |") for line in lines)
    assert (
        "† The model was calibrated on this corpus, or a part of it, so it does not count." in lines
    )
    assert not any("†" in line for line in section([corpus("c4", 0.2)], []))


def test_what_was_healed_on_is_marked_too(section: Section) -> None:
    lines = section([corpus("c4", 0.2, True)], [], ["c4"])
    assert any("† The model was calibrated or healed on this corpus" in line for line in lines)
