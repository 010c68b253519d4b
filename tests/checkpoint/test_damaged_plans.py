"""Plans whose record is damaged in one leaf are refused where they are loaded; older ones load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.checkpoint.plan import Plan, load_plan
from grasp_deploy.errors import InputError

BEHIND_GATES = [
    f"model.layers.{layer}.{linear}.weight"
    for layer in range(2)
    for linear in ("mlp.down_proj", "self_attn.o_proj")
]
ABSENT = object()


def provenance() -> dict[str, Any]:
    part = {"source": "hf:c4", "sequences": 4}
    return {
        "model": "base",
        "revision": None,
        "weight_hashes": {"model.safetensors": "0" * 64},
        "dense_layers": [[8, 2], [8, 2]],
        "cost_model": "parameters",
        "budget": {"limit": 1.0, "kept_cost": 1.0, "total_cost": 2.0},
        "config": {"model": "base"},
        "calibration": {
            **{"source": "mixture", "sequences": 8, "sequence_length": 16},
            **{"heldout_sequences": 0, "parts": [part, part]},
        },
        "losses": {"heldout_dense": None, "heldout_pruned": None},
        "seconds": {"gates": 0.0, "scales": 1.5},
        "versions": {"grasp_deploy": "0.1.0"},
        "fitted": BEHIND_GATES,
    }


def loaded(folder: Path, record: dict[str, Any]) -> Plan:
    ones = torch.ones(20)
    Plan(ones, ones.bool(), ones.clone(), record).save(folder / "plan.safetensors")
    return load_plan(folder / "plan.safetensors")


def changed(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    record = provenance()
    inner: Any = record
    for step in place[:-1]:
        inner = inner[step]
    if value is ABSENT:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return record


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("fitted",), ABSENT),
        (("fitted",), []),
        (("calibration", "parts"), ABSENT),
        (("losses",), {"heldout_dense": 2.0, "heldout_pruned": 2.5}),
        (("revision",), "main"),
    ],
)
def test_true_plans_load(tmp_path: Path, place: tuple[str | int, ...], value: Any) -> None:
    assert loaded(tmp_path, changed(place, value)).units == 20


HEALING = {
    **{"steps": 3, "rank": 8, "loss_dense": 2.0, "loss_before": 2.5, "loss_after": 2.25},
    "text": {"source": "c4", "sequences": 8, "sequence_length": 64},
}


@pytest.mark.parametrize(
    "healing",
    [
        HEALING,
        [{}],
        [{**HEALING, "text": "c4"}],
        [{**HEALING, "text": {"source": 3, "sequences": 8, "sequence_length": 64}}],
        [{**HEALING, "loss_after": None}],
        [HEALING, {**HEALING, "steps": "3"}],
    ],
)
def test_damaged_healings_are_refused(tmp_path: Path, healing: Any) -> None:
    with pytest.raises(InputError):
        loaded(tmp_path, {**provenance(), "healing": healing})


def test_a_healed_plan_may_have_fitted_any_linear_layer(tmp_path: Path) -> None:
    names = ["model.layers.1.self_attn.q_proj.weight", *BEHIND_GATES]
    record = {**provenance(), "fitted": names, "healing": [HEALING]}
    assert loaded(tmp_path, record).fitted == names


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("config",), {}),
        (("config", "model"), 3),
        (("calibration", "source"), None),
        (("calibration", "sequences"), "8"),
        (("calibration", "heldout_sequences"), ABSENT),
        (("calibration", "parts"), "both"),
        (("calibration", "parts", 0), "hf:c4"),
        (("calibration", "parts", 1, "sequences"), 1.5),
        (("versions",), {}),
        (("losses", "heldout_pruned"), ABSENT),
        (("losses", "heldout_dense"), "low"),
        (("losses", "heldout_dense"), 2.0),  # without the other
        (("budget", "total_cost"), 0),
        (("budget", "kept_cost"), "1"),
        (("budget", "limit"), float("inf")),
        (("seconds", "gates"), "long"),
        (("seconds", "scales"), ABSENT),
        (("dense_layers", 0), [8, "2"]),
        (("weight_hashes", "model.safetensors"), 1),
        (("fitted",), BEHIND_GATES[:3]),
        (("fitted",), [*BEHIND_GATES, BEHIND_GATES[0]]),
        (("fitted", 0), "model.layers.2.mlp.down_proj.weight"),
        (("fitted", 0), "model.layers.0.mlp.gate_proj.weight"),
        (("fitted", 0), "lm_head.weight"),
        (("fitted", 0), "model.layers.00.mlp.down_proj.weight"),
        (("fitted", 0), 7),
    ],
)
def test_damaged_plans(tmp_path: Path, place: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(InputError, match="is damaged: its parts do not fit together"):
        loaded(tmp_path, changed(place, value))


def test_a_plan_of_another_version_without_releases(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a plan of version 9"):
        loaded(tmp_path, {**provenance(), "version": 9, "versions": []})
