"""Which figures make a model usable, worth healing or broken, and what the verdict says of them."""

from typing import Any

import pytest

from grasp_deploy.checkpoint.card.quality_verdict import (
    BROKEN,
    BROKEN_NATS,
    DROP_IN,
    DROP_IN_NATS,
    FEW_SEQUENCES,
    FEW_TOKENS,
    NEEDS_HEALING,
    UNDECIDED,
    quality_verdict,
)
from tests.evaluate.quality.rows import corpus, task

Rows = list[dict[str, Any]]
NEAR = 1e-9
KEPT = task("kept", 0.60, 0.59)
LOST = task("lost", 0.60, 0.50)


@pytest.mark.parametrize(
    ("corpora", "tasks", "outcome"),
    [
        # The edges of both thresholds.
        ([corpus("c4", DROP_IN_NATS - NEAR)], [], DROP_IN),
        ([corpus("c4", DROP_IN_NATS + NEAR)], [], NEEDS_HEALING),
        ([corpus("c4", BROKEN_NATS - NEAR)], [], NEEDS_HEALING),
        ([corpus("c4", BROKEN_NATS + NEAR)], [], BROKEN),
        ([corpus("c4", -0.1)], [], DROP_IN),
        # The worst corpus decides, wherever it stands.
        ([corpus("c4", 0.7), corpus("ptb", 0.3)], [], BROKEN),
        # A drop-in must be one beyond noise, which one sequence does not tell.
        ([corpus("c4", 0.03, error=0.0099)], [], DROP_IN),
        ([corpus("c4", 0.03, error=0.0101)], [], UNDECIDED),
        ([corpus("c4", 0.01), corpus("ptb", 0.0, error=0.03)], [], UNDECIDED),
        ([corpus("c4", 0.0, error=None)], [], UNDECIDED),
        ([corpus("c4", 0.6, error=0.051)], [], NEEDS_HEALING),
        ([corpus("c4", 0.6, error=0.049)], [], BROKEN),
        ([corpus("c4", 0.6, error=0.3)], [], UNDECIDED),
        ([corpus("c4", 0.6, error=0.0)], [], UNDECIDED),  # no noise in sequences that are alike
        ([corpus("c4", 0.0, error=0.0)], [], DROP_IN),
        ([corpus("c4", 0.03, error=0.02)], [LOST], NEEDS_HEALING),
        # What was calibrated on does not count, for better or for worse.
        ([corpus("c4", 0.9, True), corpus("ptb", 0.01)], [], DROP_IN),
        ([corpus("c4", 0.01, True)], [], UNDECIDED),
        # Tasks: 1 point is noise, 10 points are not.
        ([corpus("c4", 0.01)], [KEPT], DROP_IN),
        ([corpus("c4", 0.01)], [task("edge", 0.6, 0.58 + NEAR)], DROP_IN),
        ([corpus("c4", 0.01)], [task("edge", 0.6, 0.58 - NEAR)], NEEDS_HEALING),
        ([corpus("c4", 0.01)], [task("unknown", 0.6, 0.5, change_error=None)], DROP_IN),
        ([corpus("c4", 0.01)], [{**LOST, "items": 29}], DROP_IN),
        ([corpus("c4", 0.01)], [{**LOST, "items": 30}], NEEDS_HEALING),
        ([corpus("c4", 0.01)], [{**LOST, "change_error": 0.0}], DROP_IN),
        # Tasks alone condemn a model and do not acquit it.
        ([], [LOST], NEEDS_HEALING),
        ([], [], UNDECIDED),
    ],
)
def test_outcomes(corpora: Rows, tasks: Rows, outcome: str) -> None:
    verdict = quality_verdict(corpora, tasks)
    assert verdict["outcome"] == outcome
    assert verdict["sentence"].startswith(f"{outcome}: ")
    assert verdict["sentence"].endswith(".") and "\n" not in verdict["sentence"]


def test_accuracies_of_unknown_error_are_not_said_to_be_kept() -> None:
    unknown = task("unknown", 0.6, 0.5, change_error=None)
    for tasks in ([KEPT], [KEPT, unknown], []):
        sentence = quality_verdict([corpus("c4", 0.01)], tasks)["sentence"]
        assert ("no accuracy fell" in sentence) == (tasks == [KEPT])


def test_the_text_that_decides_need_not_have_lost_most() -> None:
    """Noise may put the text that lost less above the threshold."""
    verdict = quality_verdict([corpus("c4", 0.02), corpus("ptb", 0.01, error=0.03)], [])
    assert "on ptb, the worst with its noise counted of the texts" in verdict["sentence"]
    alone = quality_verdict([corpus("c4", 0.02), corpus("ptb", 0.9, True)], [])
    assert "worst" not in alone["sentence"], "of one text"


def test_few_sequences_take_a_larger_loss_to_see() -> None:
    """Student's t: 2.0 standard errors of 80 sequences, 4.3 of three, and any of one."""
    rows = [{**corpus("c4", 0.08, error=0.01), "sequences": count} for count in (80, 3, 1)]
    found = [quality_verdict([row], [])["outcome"] for row in rows]
    assert found == [NEEDS_HEALING, UNDECIDED, UNDECIDED]


@pytest.mark.parametrize(
    ("size", "outcome"),
    [
        ({"tokens": 62, "sequences": 2}, UNDECIDED),
        ({"tokens": FEW_TOKENS - 1}, UNDECIDED),
        ({"sequences": FEW_SEQUENCES - 1}, UNDECIDED),
        ({"tokens": FEW_TOKENS, "sequences": FEW_SEQUENCES}, DROP_IN),
    ],
)
def test_little_text_acquits_no_model(size: dict[str, int], outcome: str) -> None:
    """Two blocks that happen to be alike show no noise."""
    row = {**corpus("c4", 0.001, error=1e-6), **size}
    verdict = quality_verdict([row, corpus("ptb", 0.01)], [])
    assert verdict["outcome"] == outcome
    assert (f"{FEW_TOKENS:,} tokens" in verdict["sentence"]) == (outcome == UNDECIDED)
    lost = {**corpus("c4", 0.9, error=1e-6), **size}
    assert quality_verdict([lost], [])["outcome"] == BROKEN, "and condemns one as before"


def test_several_texts_take_a_larger_loss_to_see() -> None:
    """One of eight seems to lose more by two standard errors in every sixth model."""
    lost, others = corpus("c4", 0.075, error=0.01), [corpus(str(i), 0.04) for i in range(7)]
    assert quality_verdict([lost], [])["outcome"] == NEEDS_HEALING
    assert quality_verdict([lost, *others], [])["outcome"] == UNDECIDED
    surely = corpus("c4", 0.08, error=0.01)
    assert quality_verdict([surely, *others], [])["outcome"] == NEEDS_HEALING


def test_several_tasks_take_a_larger_fall_to_see() -> None:
    """One of ten falls by two standard errors in every fifth model that lost nothing."""
    fallen, others = task("fallen", 0.60, 0.575), [task(str(i), 0.60, 0.60) for i in range(9)]
    assert quality_verdict([corpus("c4", 0.01)], [fallen])["outcome"] == NEEDS_HEALING
    assert quality_verdict([corpus("c4", 0.01)], [fallen, *others])["outcome"] == DROP_IN
