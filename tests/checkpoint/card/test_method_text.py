"""What a model card says of how the model was made, by method, release and healing."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
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


def plan_of(config: dict[str, Any], **provenance: Any) -> Plan:
    """A plan without units, of a run with these options."""
    options = {**asdict(CompressConfig(model="base", keep=0.5)), "method": "grasp", **config}
    nothing = torch.ones(0)
    return Plan(nothing, nothing.bool(), nothing, {"config": options, **provenance})


@pytest.mark.parametrize(
    ("config", "words", "absent"),
    [
        (
            {"method": "grasp", "start": "progressive"},
            ("learnt gates", "from a cut in rounds"),
            (),
        ),
        ({"method": "gumbel-topk", "start": "equal"}, ("`gumbel-topk`, from equal scores",), ()),
        ({"method": "grasp", "start": "flap"}, ("from the ranking of `flap`",), ()),
        (
            {"method": "progressive", "rounds": 3, "start": "progressive"},
            ("a cut in 3 rounds by `obs` scores", "global budget"),
            ("learnt",),
        ),
        (
            {"method": "progressive", "rounds": 9, "round_criterion": "obs"},
            ("a cut in 9 rounds by `obs` scores",),
            ("Taylor",),
        ),
        (
            {"method": "wanda-structured", "allocation": "owl"},
            ("the criterion `wanda-structured`", "layers' outliers"),
            ("learnt", "Taylor", "global"),
        ),
        ({"method": "random", "targets": "kv"}, ("KV-head groups were chosen",), ("FFN",)),
    ],
)
def test_the_method(
    config: dict[str, Any], words: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    said = how_units_were_chosen(plan_of(config))
    assert [word for word in words if word not in said] == [], said
    assert [word for word in (*absent, "Compensation") if word in said] == [], said


def test_swaps_are_named_where_one_was_accepted() -> None:
    config = {"method": "grasp", "swap_groups": 2}
    accepted = [{"unit": 3, "keeps": True, "heldout_loss": 2.0}]
    assert "and swaps of KV groups" in how_units_were_chosen(plan_of(config, swaps=accepted))
    assert "swaps" not in how_units_were_chosen(plan_of(config))
    assert "swaps" not in how_units_were_chosen(plan_of(config, swaps=[]))


def test_compensation_is_named_where_columns_were_solved() -> None:
    assert "Compensation: " in how_units_were_chosen(plan_of({}, fitted=["a"]))
    healed = plan_of({}, fitted=["a"], healing=[HEALING])
    assert "Compensation" not in how_units_were_chosen(healed), "healing alone fits tensors too"
    both = plan_of({}, fitted=["a"], healing=[HEALING], compensation=[{"layer": 0}])
    assert "Compensation: " in how_units_were_chosen(both)


def test_who_can_make_it_again() -> None:
    alone, fitted = (
        how_it_is_made_again(plan_of({})),
        how_it_is_made_again(plan_of({}, fitted=["a"])),
    )
    assert "From the plan and the base model" in alone and "taken from this folder" not in alone
    assert "fitted columns are taken from this folder" in fitted
    healed = how_it_is_made_again(plan_of({}, fitted=["a"], healing=[HEALING]))
    assert "healed linear layers are taken from this folder" in healed


def card(folder: Path, config: dict[str, Any] | None = None, **provenance: Any) -> str:
    """The card of a checkpoint on one line, with another config or record of making."""
    plan, shapes = load_plan(folder / PLAN_FILE), read_config(folder)
    changed = {**plan.provenance, **provenance}
    changed["config"] = {**changed["config"], **(config or {})}
    plan = replace(plan, provenance=changed)
    return " ".join(model_card(plan, dense_shape(shapes), model_shape(shapes)).split())


def test_the_card_of_a_healed_model(demo_checkpoint: Path) -> None:
    plain, healed = card(demo_checkpoint), card(demo_checkpoint, healing=[HEALING])
    assert "Healed" not in plain and "ealing" not in plain
    assert "Healed on 64 blocks of 32 tokens of `heal.txt`: 1,200 steps of LoRA of rank 8" in healed
    assert "from 2.5000 before to 2.2500 after healing" in healed
    assert "dense model's is 2.0000" in healed and "Before healing, on 1 of them" in healed
    assert "folder/heal.txt" not in healed


def test_what_held_out_text_chose(demo_checkpoint: Path) -> None:
    mask, columns = "held out to choose the mask", "held out to judge the solved columns"
    scales, nothing = " to choose the scales, the loss", "held out, the loss"
    both = {"compensation": True, "scale_epochs": 1, "select": "best"}
    assert f"{columns} and{scales}" in card(demo_checkpoint, {"method": "progressive", **both})
    assert f"{mask} and{scales}" in card(demo_checkpoint, {"method": "grasp", **both})
    plain = {"method": "grasp", "compensation": False, "scale_epochs": 0}
    for config, chosen in (
        ({"method": "grasp"}, mask),
        ({"select": "best", **plain}, mask),
        ({"select": "last", **plain}, nothing),
        ({"select": "average", **plain}, nothing),
        ({"select": "average", "swap_groups": 2, **plain}, mask),
        ({"method": "flap", "compensation": True}, columns),
        ({**plain, "method": "flap"}, nothing),
        ({**plain, "method": "flap", "scale_epochs": 1}, f"held out{scales}"),
    ):
        said = card(demo_checkpoint, config)
        known = (mask, columns, f"held out{scales}", nothing)
        assert [words for words in known if words in said] == [chosen]
    losses = {"heldout_dense": None, "heldout_pruned": None}
    assert "no loss was measured. ## Loading" in card(demo_checkpoint, losses=losses)
