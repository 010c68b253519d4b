"""Which figures make a model usable, worth healing or broken, and what the verdict says of them."""

from __future__ import annotations

from typing import Any

import pytest

from grasp_deploy.checkpoint.card.quality_verdict import (
    BROKEN,
    BROKEN_NATS,
    DROP_IN,
    DROP_IN_NATS,
    NEEDS_HEALING,
    UNDECIDED,
    quality_verdict,
)
from tests.evaluate.quality.rows import corpus, task

Rows = list[dict[str, Any]]
NEAR = 1e-9
KEPT = task("kept", 0.60, 0.59)
LOST = task("lost", 0.60, 0.50)
FALLEN = task("fallen", 0.60, 0.26)
UNABLE = task("unable", 0.26, 0.25)


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
        ([corpus("c4", 0.03, error=0.02)], [LOST], NEEDS_HEALING),
        # What was calibrated on does not count, for better or for worse.
        ([corpus("c4", 0.9, True), corpus("ptb", 0.01)], [], DROP_IN),
        ([corpus("c4", 0.01, True)], [], UNDECIDED),
        # Nor does text of the calibration's kind alone acquit a model.
        ([{**corpus("c4", 0.01), "other_kind": False}], [], UNDECIDED),
        ([{**corpus("c4", 0.01), "other_kind": False}, corpus("ptb", 0.0)], [], DROP_IN),
        ([{**corpus("c4", 0.9), "other_kind": False}, corpus("ptb", 0.0)], [], BROKEN),
        # Tasks: 1 point is noise, 10 points are not.
        ([corpus("c4", 0.01)], [KEPT], DROP_IN),
        ([corpus("c4", 0.01)], [task("edge", 0.6, 0.58 + NEAR)], DROP_IN),
        ([corpus("c4", 0.01)], [task("edge", 0.6, 0.58 - NEAR)], NEEDS_HEALING),
        ([corpus("c4", 0.01)], [task("unknown", 0.6, 0.5, change_error=None)], DROP_IN),
        # Chance: most of the tasks that the dense model can do.
        ([corpus("c4", 0.01)], [FALLEN], BROKEN),
        ([corpus("c4", 0.01)], [FALLEN, KEPT], NEEDS_HEALING),
        ([corpus("c4", 0.01)], [FALLEN, FALLEN, KEPT], BROKEN),
        ([corpus("c4", 0.01)], [FALLEN, UNABLE, UNABLE], BROKEN),
        # So near chance before that the fall is noise.
        ([corpus("c4", 0.01)], [task("weak", 0.275, 0.262)], DROP_IN),
        # Tasks alone condemn a model and do not acquit it.
        ([], [LOST], NEEDS_HEALING),
        ([], [FALLEN], BROKEN),
        ([], [], UNDECIDED),
    ],
)
def test_outcomes(corpora: Rows, tasks: Rows, outcome: str) -> None:
    verdict = quality_verdict(corpora, tasks)
    assert verdict["outcome"] == outcome
    assert verdict["sentence"].startswith(f"{outcome}: ")
    assert verdict["sentence"].endswith(".") and "\n" not in verdict["sentence"]


@pytest.mark.parametrize(
    ("corpora", "tasks", "sentence"),
    [
        (
            [corpus("c4", 0.02, error=0.003), corpus("ptb", 0.01)],
            [KEPT, UNABLE],
            f"{DROP_IN}: on c4, the worst text that it was not calibrated on, it loses 0.020 ± "
            "0.003 nats a token, with noise at most the 0.05 that a drop-in may lose, and no "
            "accuracy fell by more than noise.",
        ),
        ([corpus("c4", -0.02)], [], "it gains 0.020 ± 0.000 nats a token, with noise at most the"),
        ([corpus("c4", 0.02, error=0.04)], [], "0.020 ± 0.040 nats a token: it takes more text to"),
        ([corpus("c4", 0.9)], [], "it loses 0.900 ± 0.000 nats a token, more than 0.5."),
        ([corpus("c4", 0.2)], [], "nats a token, more than the 0.05 of a drop-in."),
        ([], [LOST], "accuracy fell by more than noise: lost from 60.0% to 50.0%."),
        ([], [FALLEN], "accuracy fell to the level of chance: fallen from 60.0% to 26.0%."),
        ([], [], "no text was measured that the model was not calibrated on: it takes more text"),
    ],
)
def test_the_sentence_names_the_figure_and_the_threshold(
    corpora: Rows, tasks: Rows, sentence: str
) -> None:
    assert sentence in quality_verdict(corpora, tasks)["sentence"]


def test_few_sequences_take_a_larger_loss_to_see() -> None:
    """Student's t: 2.0 standard errors of 80 sequences, 4.3 of three, and any of one."""
    rows = [{**corpus("c4", 0.08, error=0.01), "sequences": count} for count in (80, 3, 1)]
    found = [quality_verdict([row], [])["outcome"] for row in rows]
    assert found == [NEEDS_HEALING, UNDECIDED, UNDECIDED]


def test_several_tasks_take_a_larger_fall_to_see() -> None:
    """One of ten falls by two standard errors in every fifth model that lost nothing."""
    fallen, others = task("fallen", 0.60, 0.575), [task(str(i), 0.60, 0.60) for i in range(9)]
    assert quality_verdict([corpus("c4", 0.01)], [fallen])["outcome"] == NEEDS_HEALING
    assert quality_verdict([corpus("c4", 0.01)], [fallen, *others])["outcome"] == DROP_IN


def test_a_healed_model_needs_more_healing() -> None:
    corpora = [corpus("c4", 0.2)]
    healed, other = (quality_verdict(corpora, [], healed)["sentence"] for healed in (True, False))
    expected = other.replace("calibrated on", "calibrated or healed on")
    assert healed == expected.replace("needs healing", "needs more healing") != other
