"""What a model card says of how the model was made, by method and healing."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from grasp_deploy.checkpoint.card.method_text import how_it_is_made_again, how_units_were_chosen
from grasp_deploy.checkpoint.card.model_card import model_card
from grasp_deploy.checkpoint.format.shapes import dense_shape, model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan
from grasp_deploy.config.compress_config import CompressConfig

HEALING = {
    "text": {"source": "folder/heal.txt", "sequences": 64, "sequence_length": 32},
    "steps": 1200,
    "rank": 8,
    "loss_dense": 2.0,
    "loss_before": 2.5,
    "loss_after": 2.25,
}


def plan_of(config: dict[str, Any] | None = None, **provenance: Any) -> Plan:
    """A plan without units, of a run with these options."""
    options = {**asdict(CompressConfig(model="base", keep=0.5)), **(config or {})}
    nothing = torch.ones(0)
    return Plan(nothing, nothing.bool(), nothing, {"config": options, **provenance})


def test_the_method() -> None:
    for method, said in {"grasp": "gates", "progressive": "rounds", "m:f": "`m:f`"}.items():
        text = how_units_were_chosen(plan_of({"method": method}))
        assert said in text and "Compensation" not in text


def test_compensation_is_named_where_it_changed_something() -> None:
    assert "into the norms" not in how_units_were_chosen(plan_of())
    scaled = replace(plan_of(), norm_scales=torch.ones(1, 4))
    assert how_units_were_chosen(scaled).endswith("are folded into the norms.")
    assert "Compensation: " in how_units_were_chosen(plan_of(fitted=["a"]))
    healed: dict[str, Any] = {"fitted": ["a"], "healing": [HEALING]}
    assert "Compensation" not in how_units_were_chosen(plan_of(**healed)), "healing alone fits too"
    both = plan_of(**healed, compensation=[{"layer": 0}])
    assert "Compensation: " in how_units_were_chosen(both)


def test_what_the_folder_alone_holds_is_told() -> None:
    assert "taken from this folder" not in how_it_is_made_again(plan_of())
    fitted = how_it_is_made_again(plan_of(fitted=["a"]))
    assert "fitted columns are taken from this folder" in fitted
    healed = how_it_is_made_again(plan_of(fitted=["a"], healing=[HEALING]))
    assert "healed linear layers are taken from this folder" in healed


def test_what_it_learnt_from(demo_checkpoint: Path) -> None:
    plan, config = load_plan(demo_checkpoint / PLAN_FILE), read_config(demo_checkpoint)

    def card(**provenance: Any) -> str:
        changed = replace(plan, provenance={**plan.provenance, **provenance})
        shapes = dense_shape(config), model_shape(config)
        return " ".join(model_card(changed, *shapes, from_base={}).split())

    plain, healed = card(), card(healing=[HEALING])
    assert "16 sequences of 128 tokens of `calibration.jsonl`" in plain and "ealed" not in plain
    assert "64 sequences of 32 tokens of `heal.txt`" in healed and "folder/heal.txt" not in healed
    assert "2.5000" in healed and "2.2500" in healed
    assert "no loss was measured" in card(losses={"heldout_dense": None, "heldout_pruned": None})
