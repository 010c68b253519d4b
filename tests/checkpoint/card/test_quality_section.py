"""What a model card says of quality."""

from __future__ import annotations

from typing import Any

from grasp_deploy.checkpoint.card.quality_section import NOT_MEASURED, quality_section
from grasp_deploy.checkpoint.card.quality_verdict import quality_verdict
from tests.evaluate.quality.rows import corpus, task

Rows = list[dict[str, Any]]


def section(corpora: Rows, tasks: Rows) -> list[str]:
    verdict = quality_verdict(corpora, tasks)
    return quality_section({"verdict": verdict, "corpora": corpora, "tasks": tasks}).splitlines()


def test_without_a_measurement_it_says_how_to_make_one() -> None:
    assert quality_section(None) == NOT_MEASURED
    assert "run `grasp-deploy evaluate card DIR`" in NOT_MEASURED


def test_dense_beside_pruned() -> None:
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


def test_what_was_calibrated_on_is_marked_and_explained() -> None:
    lines = section([corpus("c4", 0.2, True), corpus("a|b", 0.2)], [])
    assert any(line.startswith("| c4 (test)† |") for line in lines)
    assert any(line.startswith("| a\\|b (test) |") for line in lines)
    assert (
        "† The model was calibrated on this corpus, or a part of it, so it does not count." in lines
    )
    assert not any("†" in line for line in section([corpus("c4", 0.2)], []))


def test_what_was_healed_on_is_marked_too() -> None:
    corpora = [corpus("c4", 0.2, True)]
    quality = {"verdict": quality_verdict(corpora, [], True), "corpora": corpora, "tasks": []}
    told = quality_section({**quality, "healed_on": ["c4"]})
    assert "† The model was calibrated or healed on this corpus" in told
