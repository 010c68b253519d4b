"""Plans load where their record is whole, and are refused where one leaf is damaged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grasp_deploy.checkpoint.plan import Plan, load_plan
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from tests.documents import ABSENT, HEALING, changed

BEHIND_GATES = [
    f"model.layers.{layer}.{linear}.weight"
    for layer in range(2)
    for linear in ("mlp.down_proj", "self_attn.o_proj")
]


def provenance() -> dict[str, Any]:
    part = {"source": "hf:c4", "sequences": 4}
    return {
        "model": "base",
        "revision": None,
        "weight_hashes": {"model.safetensors": "0" * 64},
        "dense_layers": [[8, 2], [8, 2]],
        "cost_model": "parameters",
        "budget": {"limit": 1.0, "kept_cost": 1.0, "total_cost": 2.0},
        "config": CompressConfig("base", keep=0.6).as_dict(),
        "calibration": {
            **{"source": "mixture", "sequences": 8, "sequence_length": 16},
            **{"heldout_sequences": 0, "parts": [part, part]},
        },
        "losses": {"heldout_dense": None, "heldout_pruned": None},
        "seconds": {"gates": 0.0, "scales": 1.5},
        "versions": {"grasp_deploy": "0.1.0"},
        "fitted": dict.fromkeys(BEHIND_GATES, "0" * 64),
    }


def loaded(folder: Path, record: dict[str, Any]) -> Plan:
    ones = torch.ones(20)
    Plan(ones, ones.bool(), ones.clone(), record).save(folder / "plan.grasp")
    return load_plan(folder / "plan.grasp")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("fitted",), ABSENT),
        (("losses",), {"heldout_dense": 2.0, "heldout_pruned": 2.5}),
        (("revision",), "main"),
        (("config", "targets"), ABSENT),
    ],
)
def test_true_plans_load(tmp_path: Path, place: tuple[str | int, ...], value: Any) -> None:
    assert loaded(tmp_path, changed(provenance(), place, value)).mask.all()


def test_a_recovered_plan_may_have_fitted_all_between_embeddings_and_head(tmp_path: Path) -> None:
    names = ["model.layers.1.self_attn.q_proj.weight", "model.norm.weight", *BEHIND_GATES]
    record = {**provenance(), "fitted": dict.fromkeys(names, "0"), "healing": [HEALING]}
    plan = loaded(tmp_path, record)
    assert plan.fitted == dict.fromkeys(names, "0") and plan.release == "0.1.0"
    record["healing"] = [{**HEALING, "versions": {"grasp_deploy": "0.2.0"}}]
    assert loaded(tmp_path, record).release == "0.2.0"


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("calibration", "parts", 1, "sequences"), 1.5, r"parts\[0\].sequences"),
        (("model",), "a\0b", "model: Expected `str` matching"),
        (("losses", "heldout_dense"), 2.0, "losses: one loss is null"),
        *(
            (("config", "tensor_parallel"), odd, "config.tensor_parallel: Expected `int`")
            for odd in (0, "2", 10**13)
        ),
        (("budget", "total_cost"), 0, "budget.total_cost: Expected `float` > 0"),
        (("budget", "kept_cost"), 1.5, "budget: kept_cost is over the limit"),
        (("healing",), [HEALING, {**HEALING, "tokens": "3"}], r"healing\[1\].tokens: "),
        (("healing",), [{**HEALING, "versions": {}}], r"healing\[0\].versions: "),
        (("inputs",), ["costs"], "inputs: Expected `object`"),
        (("fitted",), dict.fromkeys(BEHIND_GATES[:3], "0"), "fitted names other tensors"),
    ],
)
def test_damaged_plans(
    tmp_path: Path, place: tuple[str | int, ...], value: Any, reason: str
) -> None:
    with pytest.raises(InputError, match=rf"plan.grasp does not fit \(.*{reason}.*again"):
        loaded(tmp_path, changed(provenance(), place, value))


TOKENS, NORMS = torch.ones(2, 3).long(), torch.ones(5, 8)  # two layers have five norms


@pytest.mark.parametrize(
    ("name", "tensor", "fits"),
    [
        ("witness", TOKENS, True),
        *(("witness", odd, False) for odd in (TOKENS[0], -TOKENS)),
        ("norm_scales", NORMS, True),
        *(("norm_scales", odd, False) for odd in (NORMS[1:], NORMS[0, 0], NORMS / 0)),
    ],
)
def test_tensors_fit_the_layers(tmp_path: Path, name: str, tensor: Tensor, fits: bool) -> None:
    ones, path = torch.ones(20), tmp_path / "plan.grasp"
    added: dict[str, Any] = {name: tensor}
    Plan(ones, ones.bool(), ones.clone(), provenance(), **added).save(path)
    if fits:
        assert torch.equal(getattr(load_plan(path), name), tensor)
        return
    with pytest.raises(InputError, match="its tensors do not fit its layers"):
        load_plan(path)
