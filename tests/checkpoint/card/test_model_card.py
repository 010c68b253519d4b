"""What a model card says of quality, and of how the model was made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.checkpoint.card.model_card import card_metadata, model_card
from grasp_deploy.checkpoint.card.quality_verdict import quality_verdict
from grasp_deploy.checkpoint.format.shapes import dense_shape, model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from tests.evaluate.quality.rows import corpus, task

Rows = list[dict[str, Any]]


def card(folder: Path, quality: dict[str, Any] | None = None, **changes: Any) -> str:
    """The card of a checkpoint, with `changes` of what its plan says."""
    plan, config = load_plan(folder / PLAN_FILE), read_config(folder)
    plan = replace(plan, provenance={**plan.provenance, **changes})
    shapes = dense_shape(config), model_shape(config)
    return model_card(plan, *shapes, quality, from_base=card_metadata(folder))


def section(folder: Path, corpora: Rows, tasks: Rows) -> list[str]:
    """Lines of a card that stand under its heading of quality."""
    verdict = quality_verdict(corpora, tasks)
    quality = {"verdict": verdict, "corpora": corpora, "tasks": tasks}
    return card(folder, quality).partition("## Quality\n\n")[2].splitlines()


def test_an_export_has_the_card_without_a_record(demo_checkpoint: Path) -> None:
    text = (demo_checkpoint / "README.md").read_text()
    assert text == card(demo_checkpoint)
    assert "## Quality\n\nNot measured: run `grasp-deploy evaluate card DIR`." in text


@pytest.mark.parametrize(
    ("changes", "hub_id", "option"),
    [
        ({"model": "/home/me/a model"}, None, "'PATH/TO/a model'"),
        ({"model": "/home/me/a"}, "org/a", "org/a"),
        ({"model": "org/b", "revision": "c0ffee"}, "org/a", "org/b"),
    ],
)
def test_the_command_names_a_base_that_the_reader_can_have(
    demo_checkpoint: Path, changes: dict[str, Any], hub_id: str | None, option: str
) -> None:
    stated = load_plan(demo_checkpoint / PLAN_FILE).provenance["config"]
    text = card(demo_checkpoint, **changes, config={**stated, "base_model_id": hub_id})
    assert f"export DIR/plan.grasp --model {option} --output AGAIN" in text
    assert f"verify DIR --model {option}\n" in text


def test_dense_beside_pruned(demo_checkpoint: Path) -> None:
    fewshot = task("piqa", 0.8, 0.7, num_fewshot=5)
    lines = section(demo_checkpoint, [corpus("c4", 0.0953102, error=0.004)], [fewshot])
    assert lines[0].startswith("**Needs healing**: on c4, the worst text that it did")
    # exp(0.0953102) is 1.1.
    assert "| c4 (test) | 20,470 in sequences of 2,048 | 8.00 | 8.80 | 0.095 ± 0.004 |" in lines
    row = "| piqa (acc_norm, 5 examples) | 2,500 | 25.0 | 80.0 ± 1.0 | 70.0 ± 1.0 | -10.0 ± 1.0 |"
    assert row in lines
    assert not any("†" in line for line in lines)


def test_what_was_learnt_from_is_marked_and_explained(demo_checkpoint: Path) -> None:
    corpora = [corpus("c4", 0.2, True), corpus("a|b", 0.2)]
    lines = section(demo_checkpoint, corpora, [])
    for start in ("| c4 (test)† |", "| a\\|b (test) |", "† The model learnt from this corpus"):
        assert any(line.startswith(start) for line in lines)


HEALING = {
    "text": {"source": "folder/heal.txt", "sequences": 64, "sequence_length": 32},
    **{"steps": 1200, "rank": 8, "loss_dense": 2.0, "loss_before": 2.5, "loss_after": 2.25},
}


def test_what_made_the_model_is_told(demo_checkpoint: Path) -> None:
    stated = load_plan(demo_checkpoint / PLAN_FILE).provenance["config"]
    for method, said in {"grasp": "gates", "progressive": "rounds", "m:f": "`m:f`"}.items():
        assert said in card(demo_checkpoint, config={**stated, "method": method})
    plain, healed = card(demo_checkpoint), card(demo_checkpoint, healing=[HEALING])
    assert "`calibration.jsonl`" in plain and "ealed on" not in plain
    assert "`heal.txt`" in healed and "folder/heal.txt" not in healed
    assert "2.5000" in healed and "2.2500" in healed
    only_healed = card(demo_checkpoint, healing=[HEALING], fitted=["a"], compensation=[])
    assert "Compensation: " in plain and "Compensation: " not in only_healed
    losses = {"heldout_dense": None, "heldout_pruned": None}
    assert "held out" in plain and "held out" not in card(demo_checkpoint, losses=losses)
