"""Which figures make a model usable, worth healing or broken, and what the verdict says of them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from grasp_deploy.checkpoint.card.quality_verdict import (
    BROKEN,
    BROKEN_NATS,
    DROP_IN,
    DROP_IN_NATS,
    NEEDS_HEALING,
    UNDECIDED,
    excess_loss,
    quality_verdict,
)
from tests.evaluate.quality.rows import corpus, task

Rows = list[dict[str, Any]]
NEAR = 1e-9
KEPT = task("kept", 0.60, 0.59)
LOST = task("lost", 0.60, 0.50)
FALLEN = task("fallen", 0.60, 0.26)
UNABLE = task("unable", 0.26, 0.25)


def test_excess_loss_is_the_logarithm_of_the_ratio() -> None:
    assert excess_loss(10.0, 20.0) == pytest.approx(math.log(2))
    assert excess_loss(20.0, 10.0) == pytest.approx(-math.log(2))
    assert excess_loss(7.0, 7.0) == 0.0


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
        ([corpus("c4", 0.01), corpus("ptb", 0.3)], [], NEEDS_HEALING),
        ([corpus("c4", 0.7), corpus("ptb", 0.3)], [], BROKEN),
        # A drop-in must be one beyond noise, which one block does not tell.
        ([corpus("c4", 0.03, error=0.0099)], [], DROP_IN),
        ([corpus("c4", 0.03, error=0.0101)], [], UNDECIDED),
        ([corpus("c4", 0.01), corpus("ptb", 0.0, error=0.03)], [], UNDECIDED),
        ([corpus("c4", 0.0, error=None)], [], UNDECIDED),
        ([corpus("c4", 0.06, error=0.0051)], [], UNDECIDED),
        ([corpus("c4", 0.06, error=0.0049)], [], NEEDS_HEALING),
        ([corpus("c4", 0.6, error=0.051)], [], NEEDS_HEALING),
        ([corpus("c4", 0.6, error=0.049)], [], BROKEN),
        ([corpus("c4", 0.6, error=0.3)], [], UNDECIDED),
        ([corpus("c4", 0.6, error=0.3), corpus("ptb", 0.07, error=0.001)], [], NEEDS_HEALING),
        ([corpus("c4", 0.06, error=None)], [], NEEDS_HEALING),
        ([corpus("c4", 0.03, error=0.02)], [LOST], NEEDS_HEALING),
        # What was calibrated on does not count, for better or for worse.
        ([corpus("c4", 0.01, True), corpus("ptb", 0.3)], [], NEEDS_HEALING),
        ([corpus("c4", 0.9, True), corpus("ptb", 0.01)], [], DROP_IN),
        ([corpus("c4", 0.01, True)], [], UNDECIDED),
        # Tasks: 1 point is noise, 10 points are not.
        ([corpus("c4", 0.01)], [KEPT], DROP_IN),
        ([corpus("c4", 0.01)], [KEPT, LOST], NEEDS_HEALING),
        ([corpus("c4", 0.01)], [task("edge", 0.6, 0.58 + NEAR)], DROP_IN),
        ([corpus("c4", 0.01)], [task("edge", 0.6, 0.58 - NEAR)], NEEDS_HEALING),
        ([corpus("c4", 0.01)], [task("unknown", 0.6, 0.5, change_error=None)], DROP_IN),
        ([corpus("c4", 0.2)], [KEPT], NEEDS_HEALING),
        # Chance: most of the tasks that the dense model can do.
        ([corpus("c4", 0.01)], [FALLEN], BROKEN),
        ([corpus("c4", 0.01)], [FALLEN, KEPT], NEEDS_HEALING),
        ([corpus("c4", 0.01)], [FALLEN, FALLEN, KEPT], BROKEN),
        ([corpus("c4", 0.01)], [FALLEN, UNABLE, UNABLE], BROKEN),
        ([corpus("c4", 0.01)], [UNABLE], DROP_IN),
        # So near chance before that the fall is noise.
        ([corpus("c4", 0.01)], [task("weak", 0.275, 0.262)], DROP_IN),
        # Tasks alone condemn a model and do not acquit it.
        ([], [LOST], NEEDS_HEALING),
        ([], [FALLEN], BROKEN),
        ([], [KEPT], UNDECIDED),
        ([], [], UNDECIDED),
    ],
)
def test_outcomes(corpora: Rows, tasks: Rows, outcome: str) -> None:
    verdict = quality_verdict(corpora, tasks)
    assert verdict["outcome"] == outcome
    assert verdict["sentence"].startswith(f"{outcome}: ")
    assert verdict["sentence"].endswith(".") and "\n" not in verdict["sentence"]


@pytest.mark.parametrize(
    ("corpora", "tasks", "words"),
    [
        (
            [corpus("c4", 0.02, error=0.003)],
            [],
            (
                "on c4, text that it was not calibrated on, it loses at most 0.026 nats a token",
                "(noise included), less than the 0.05 that a drop-in may lose",
            ),
        ),
        (
            [corpus("c4", -0.001, error=0.007)],
            [],
            ("no loss beyond noise: at most 0.013 nats", "less than the 0.05"),
        ),
        ([corpus("c4", 0.013, error=0.007)], [], ("no loss beyond noise: at most 0.027 nats",)),
        ([corpus("c4", -0.02)], [], ("it gains 0.020 ± 0.000 nats", "may lose 0.05")),
        ([corpus("c4", -0.01, error=0.04)], [], ("gains 0.010 ± 0.040", "0.05", "--sequences")),
        ([corpus("c4", 0.02)], [KEPT, UNABLE], ("2 tasks", "fell by more than noise")),
        (
            [corpus("c4", 0.2), corpus("ptb", 0.3)],
            [],
            ("ptb, the worst of 2 corpora that", "0.300", "0.05"),
        ),
        ([corpus("c4", 0.02, error=0.04)], [], ("0.020 ± 0.040", "0.05", "--sequences")),
        ([corpus("c4", 0.9)], [], ("on c4", "0.900", "more than 0.5")),
        (
            [corpus("c4", 0.6, error=0.1)],
            [],
            ("more than the 0.05 of a drop-in, and whether it is more than 0.5 takes more text",),
        ),
        ([corpus("c4", 0.02)], [LOST], ("lost", "10.0 points", "standard error of 1.0")),
        ([corpus("c4", 0.02)], [FALLEN], ("fallen", "26.0%", "60.0%", "chance 25.0%")),
    ],
)
def test_the_sentence_names_the_figure_and_the_threshold(
    corpora: Rows, tasks: Rows, words: tuple[str, ...]
) -> None:
    sentence = quality_verdict(corpora, tasks)["sentence"]
    assert [word for word in words if word not in sentence] == [], sentence


def test_few_blocks_take_a_larger_loss_to_see() -> None:
    """Student's t: 2.0 standard errors of 80 blocks, 4.3 of three, and any of one."""
    rows = [{**corpus("c4", 0.08, error=0.01), "sequences": blocks} for blocks in (80, 3, 1)]
    found = [quality_verdict([row], [])["outcome"] for row in rows]
    assert found == [NEEDS_HEALING, UNDECIDED, UNDECIDED]


def test_several_tasks_take_a_larger_fall_to_see() -> None:
    """One of ten falls by two standard errors in every fifth model that lost nothing."""
    fallen, others = task("fallen", 0.60, 0.575), [task(str(i), 0.60, 0.60) for i in range(9)]
    assert quality_verdict([corpus("c4", 0.01)], [fallen])["outcome"] == NEEDS_HEALING
    assert quality_verdict([corpus("c4", 0.01)], [fallen, *others])["outcome"] == DROP_IN


def test_only_a_healed_model_was_healed_on_something() -> None:
    for corpora in ([corpus("c4", 0.2)], [corpus("c4", 0.2, True)], [corpus("c4", 0.01)]):
        healed, other = (
            quality_verdict(corpora, [], healed)["sentence"] for healed in (True, False)
        )
        expected = other.replace("calibrated on", "calibrated or healed on")
        assert healed == expected.replace("needs healing", "needs more healing") != other
