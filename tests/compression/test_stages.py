"""Methods and compensation through a whole compression."""

import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan
from grasp_deploy.checkpoint.read import loading
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.read.source import WEIGHTS_FILE
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.compression import stages
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.prepare import prepare
from grasp_deploy.compression.run_options import RunOptions, Start
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.tensors import digest_of, read_tensors, write_tensors
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.objective import mean_loss
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.units import UnitTable
from tests.cli.test_verify import state_anew
from tests.compression.conftest import Killed, MakeConfig, compressed, kill_in
from tests.tiny import save_tiny


def test_saving_takes_a_twentieth_of_the_time_at_most() -> None:
    since = time.monotonic() - 15
    assert stages.must_save(since, saving=0.5) and not stages.must_save(since, saving=1.0)


COMPENSATED: dict[str, Any] = {"method": "progressive", "rounds": 1, "scale_epochs": 1}


@pytest.fixture(scope="module")
def quick(make_config: MakeConfig) -> CompressConfig:
    """Its text has more tokens than a layer has columns."""
    return make_config(keep=0.6, scale_epochs=0, compensation=False)


def test_scores_of_ones_own_decide_the_mask(
    quick: CompressConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function sees the budget and all of the text; its scores are projected as they are."""
    seen: list[tuple[Budget, CalibrationText]] = []

    def scores(model: PreTrainedModel, budget: Budget, text: CalibrationText) -> Tensor:
        seen.append((budget, text))
        for _ in text.batches(model):
            assert torch.is_grad_enabled()
        return -torch.arange(budget.units.size) * 1e6

    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(scores=scores))
    config = replace(quick, method="mine:scores", rounds=CompressConfig.rounds, seed=3)
    plan, rows = compressed(config, tmp_path / "out")
    (budget, text), job = seen[0], prepare(config)
    assert torch.equal(text.sequences, job.blocks.train) and text.seed == 3
    assert torch.equal(budget.costs, job.budget.costs) and budget.limit == job.budget.limit
    assert torch.equal(plan.mask, project(-torch.arange(budget.units.size).double(), job.budget))
    assert {row["stage"] for row in rows} <= {"criterion", "export"}
    assert torch.equal(plan.scales, torch.ones(len(plan.mask)))
    assert all(check.ok for check in verify(tmp_path / "out"))
    infinite = SimpleNamespace(scores=lambda *_: [0.0] * 7 + [1e39] * (budget.units.size - 7))
    monkeypatch.setitem(sys.modules, "mine", infinite)
    with pytest.raises(InputError, match=r"returned 1e\+39 for unit 7: scores are finite numbers"):
        compress(config, tmp_path / "other")


def test_a_cut_in_rounds_scores_what_is_left(quick: CompressConfig, tmp_path: Path) -> None:
    config = replace(quick, **{**COMPENSATED, "rounds": 3}, compensation=True)
    rounds, rows = compressed(config, tmp_path / "rounds")
    at_once, _ = compressed(replace(config, rounds=1), tmp_path / "at-once")
    own = replace(config, method="benchmarks.baselines.one_shot:obs", rounds=CompressConfig.rounds)
    one_shot, _ = compressed(own, tmp_path / "one-shot")
    assert torch.equal(at_once.mask, one_shot.mask)
    assert not torch.equal(rounds.mask, at_once.mask)
    steps = [row["step"] for row in rows if row["stage"] == "rounds"]
    assert steps == sorted(steps) and steps[-1] == rows[0]["steps"]
    assert all(check.ok for check in verify(tmp_path / "rounds"))


def test_what_learning_wrecks_is_not_kept(quick: CompressConfig, tmp_path: Path) -> None:
    """A learning rate that wrecks the scores: held-out text prefers the mask of the rounds."""
    rounds: dict[str, Any] = {**COMPENSATED, "rounds": 2}
    config = replace(quick, **rounds, compensation=True, learning_rate=5.0)
    start, _ = compressed(config, tmp_path / "start")
    learnt, rows = compressed(replace(config, method="grasp"), tmp_path / "learnt")
    assert torch.equal(learnt.mask, start.mask)
    first = next(row for row in rows if row["stage"] == "gates")
    units = UnitTable.of_layers(start.dense_layers)
    assert (first["kept_ffn_share"], first["kept_kv_share"]) == units.kept_shares(start.mask)


Compensated = tuple[Path, Plan, list[dict[str, Any]]]  # its folder, plan and metrics


@pytest.fixture(scope="module")
def compensated(quick: CompressConfig, tmp_path_factory: pytest.TempPathFactory) -> Compensated:
    output = tmp_path_factory.mktemp("compensated") / "out"
    config = replace(quick, **COMPENSATED, compensation=True)
    return output, *compressed(config, output)


@pytest.mark.slow
def test_compensation_lowers_the_heldout_loss(short_config: CompressConfig, tmp_path: Path) -> None:
    """On text that it has not seen, on a really trained model."""
    # More tokens than a layer has columns.
    config = replace(short_config, sequences=48, sequence_length=128, **COMPENSATED)
    plan, rows = compressed(config, tmp_path / "with")
    checks = list(verify(tmp_path / "with"))
    assert len(checks) == 7 and all(check.ok for check in checks), checks
    count = 2 * len(plan.dense_layers)
    assert f"{count} refitted or recovered ones have the SHA" in checks[2].detail
    steps = [row["step"] for row in rows if row["stage"] == "compensation"]
    assert steps == [*range(1, count + 1)]
    without, _ = compressed(replace(config, compensation=False), tmp_path / "without")
    assert torch.equal(without.mask, plan.mask)
    losses = [one.provenance["losses"]["heldout_pruned"] for one in (plan, without)]
    assert losses[0] < losses[1]


def test_a_plan_in_its_checkpoint_makes_it_again_and_one_elsewhere_does_not(
    compensated: Compensated, tmp_path: Path
) -> None:
    output, plan, _ = compensated
    base = plan.provenance["model"]
    export(plan, base, tmp_path / "returned")
    export(load_plan(output / PLAN_FILE), base, tmp_path / "again")
    for name in ("model.safetensors", "config.json", PLAN_FILE, "README.md"):
        assert (tmp_path / "again" / name).read_bytes() == (output / name).read_bytes(), name
    shutil.copyfile(output / PLAN_FILE, tmp_path / PLAN_FILE)
    with pytest.raises(InputError, match=r"6 fitted .* alone.* compress or heal again"):
        export(load_plan(tmp_path / PLAN_FILE), base, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def outcomes_anew(folder: Path) -> dict[str, str]:
    """What each link comes to under a manifest that fits the files."""
    state_anew(folder)
    return {check.name: check.outcome for check in verify(folder)}


def test_noise_in_place_of_fitted_tensors(compensated: Compensated, tmp_path: Path) -> None:
    """Its digests show it, and where the plan was written anew as well, its loss."""
    folder = Path(shutil.copytree(compensated[0], tmp_path / "noise"))
    tensors, fitted = load_file(folder / WEIGHTS_FILE), compensated[1].fitted
    noise = {name: torch.randn_like(tensors[name]) * tensors[name].std() for name in fitted}
    save_file({**tensors, **noise}, folder / WEIGHTS_FILE, {"format": "pt"})
    assert outcomes_anew(folder)["weights"] == "wrong"
    vectors, record = read_tensors(folder / PLAN_FILE)
    with pytest.raises(InputError, match="whose SHA-256 the plan states"):
        export(load_plan(folder / PLAN_FILE), record["model"], tmp_path / "other")
    healing = CompressConfig.from_dict({**record["config"], "recover": 10**5}, "the plan")
    with pytest.raises(InputError, match="whose SHA-256 the plan states"):
        prepare(healing, start=Start(checkpoint=folder))
    record["fitted"] = {name: digest_of(noise[name]) for name in fitted}
    write_tensors(folder / PLAN_FILE, vectors, record)
    found = outcomes_anew(folder)
    assert (found["weights"], found["loss"]) == ("proven", "wrong")


def test_the_plan_states_the_loss_of_the_finished_model(
    quick: CompressConfig, tmp_path: Path
) -> None:
    """Not the dense model's, from which this one is far away."""
    config = replace(quick, **COMPENSATED, compensation=True, keep=0.35)
    plan, _ = compressed(config, tmp_path / "out")
    assert plan.witness is not None
    models = (load(folder, device="cpu") for folder in (quick.model, tmp_path / "out"))
    dense, finished = (mean_loss(model, plan.witness, 1) for model in models)
    assert finished > dense + 0.1
    assert plan.provenance["losses"]["witness"] == pytest.approx(finished, abs=0.02)


def test_a_loss_under_the_one_that_the_plan_states(
    compensated: Compensated, tmp_path: Path
) -> None:
    """It is another model's, however good: the plan states what was measured."""
    folder = Path(shutil.copytree(compensated[0], tmp_path / "better"))
    vectors, record = read_tensors(folder / PLAN_FILE)
    record["losses"]["witness"] += 0.5
    write_tensors(folder / PLAN_FILE, vectors, record)
    found = outcomes_anew(folder)
    assert (found["weights"], found["loss"]) == ("proven", "wrong")


def test_too_little_text_leaves_the_weights_as_they_were(
    quick: CompressConfig, tmp_path: Path
) -> None:
    """A few blocks of 16 tokens fit a hundred columns perfectly, and mean nothing."""
    little: dict[str, Any] = {"sequences": 4, "sequence_length": 16, "compensation": True}
    config = replace(quick, method="progressive", rounds=1, keep=0.9, ridge=1e-6, **little)
    plan, rows = compressed(config, tmp_path / "out")
    assert "compensation" in {row["stage"] for row in rows}
    assert plan.fitted == {} and plan.provenance["compensation"] == []
    assert all(check.ok for check in verify(tmp_path / "out"))


def test_refitted_columns_carry_their_scales(
    compensated: Compensated, quick: CompressConfig, tmp_path: Path
) -> None:
    """The same run without scales has the same mask and columns, each unscaled."""
    output, plan, _ = compensated
    config = replace(quick, **{**COMPENSATED, "scale_epochs": 0}, compensation=True)
    plain, _ = compressed(config, tmp_path / "plain")
    assert torch.equal(plain.mask, plan.mask) and plain.norm_scales is None
    units = UnitTable.of_layers(plan.dense_layers)
    name = "model.layers.0.mlp.down_proj.weight"
    scaled, unscaled = (
        load_file(folder / "model.safetensors")[name].float()
        for folder in (output, tmp_path / "plain")
    )
    scales = plan.scales[units.ffn(0)][plan.mask[units.ffn(0)]]
    assert (scales - 1).abs().max() > 0.02, "the scales were learnt"
    torch.testing.assert_close(scaled, unscaled * scales, rtol=0.02, atol=1e-4)


def test_norms_carry_their_scales(
    compensated: Compensated, quick: CompressConfig, tmp_path: Path
) -> None:
    """Each in its place, rounded once; without them the norms are the dense model's."""
    output, plan, _ = compensated
    dense = load_file(Path(quick.model) / "model.safetensors")
    cut = load_file(output / "model.safetensors")
    assert plan.norm_scales is not None
    assert (plan.norm_scales - 1).abs().max() > 0.02, "the scales were learnt"
    for row, name in ((1, "model.layers.0.post_attention_layernorm"), (-1, "model.norm")):
        weight = dense[f"{name}.weight"]
        expected = (weight.float() * plan.norm_scales[row]).to(weight.dtype)
        assert torch.equal(cut[f"{name}.weight"], expected)
    config = replace(quick, **COMPENSATED, compensation=True, norm_scales=False)
    plain, _ = compressed(config, tmp_path / "plain")
    stays = load_file(tmp_path / "plain" / "model.safetensors")["model.norm.weight"]
    assert plain.norm_scales is None and torch.equal(stays, dense["model.norm.weight"])


def test_a_run_killed_in_its_last_refit_ends_in_the_same_weights(
    quick: CompressConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the dtype that it began in, though a loaded processor would now time another."""
    save_tiny("llama", tmp_path / "model", dtype=torch.bfloat16)
    monkeypatch.setattr(loading, "bfloat16_rate", lambda: 2.0)
    config = replace(quick, model=str(tmp_path / "model"), **COMPENSATED, compensation=True)
    whole, rows = compressed(config, tmp_path / "whole")
    assert whole.provenance["compensation"], "the refit stayed"
    layers = sum(row["stage"] == "compensation" for row in rows)
    with pytest.raises(Killed):
        kill = kill_in("compensation", layers - 2)
        compress(config, RunOptions(tmp_path / "out", on_progress=kill))
    monkeypatch.setattr(loading, "bfloat16_rate", lambda: 0.5)
    compress(config, RunOptions(tmp_path / "out", resume=True))
    weights = [(tmp_path / name / WEIGHTS_FILE).read_bytes() for name in ("whole", "out")]
    assert weights[0] == weights[1]
    plans = (load_plan(tmp_path / name / PLAN_FILE) for name in ("whole", "out"))
    first, second = (plan.provenance["compensation"] for plan in plans)
    assert first == second
