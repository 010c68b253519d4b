"""Healing: the held-out loss falls, shapes stay, and the result is a checkpoint like any other."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.compression.compress import compress
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import TextSource, read_blocks
from grasp_deploy.data.overlap import NOTEWORTHY_SHARE, calibrated_share
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.card import healing_sources
from grasp_deploy.evaluate.perplexity import perplexity
from grasp_deploy.healing.heal import heal
from grasp_deploy.healing.lora import LINEARS, distillation_loss
from grasp_deploy.healing.settings import HealConfig
from tests.cli.command import assert_refused, document, grasp_deploy

pytest.importorskip("peft", reason="healing needs the extra 'heal'")
pytestmark = pytest.mark.slow  # each heals or compresses the embedded model


@pytest.fixture(scope="module")
def quick(demo_text: tuple[Path, Path]) -> HealConfig:
    return HealConfig(
        calibration=str(demo_text[0]),
        sequences=64,
        sequence_length=64,
        steps=40,
        rank=8,
        batch_size=8,
    )


@pytest.fixture(scope="module")
def cut(short_config: CompressConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that lost much: a random mask, and nothing that makes up for it."""
    output = tmp_path_factory.mktemp("cut") / "out"
    bare = replace(
        short_config,
        method="benchmarks.baselines.one_shot:random",
        rounds=5,
        compensation=False,
        scale_epochs=0,
    )
    compress(bare, output)
    return output


@pytest.fixture(scope="module")
def healed(quick: HealConfig, cut: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("healed") / "out"
    rows: list[dict[str, Any]] = []
    result = heal(cut, quick, output, on_progress=rows.append)
    assert result.loss_after < result.loss_before
    assert quick.steps is not None
    assert 0 < result.steps == len(rows) <= quick.steps  # fewer where the loss falls no more
    assert {row["stage"] for row in rows} == {"healing"}
    return output


def test_the_plan_knows_the_text_of_calibration_and_of_healing(
    healed: Path, cut: Path, demo_text: tuple[Path, Path], quick: HealConfig
) -> None:
    before, after = (load_plan(d / PLAN_FILE).calibrated for d in (cut, healed))
    assert before is not None and after is not None
    assert set(before.tolist()) < set(after.tolist())
    assert bool((after.diff() > 0).all()), "ascending, each hash once"
    tokenizer = load_tokenizer(healed)
    healed_on = read_blocks(tokenizer, TextSource(quick.calibration), 64, 64).token_ids.flatten()
    later = healed_on[16 * 128 :]  # behind the calibration text
    heldout = read_blocks(tokenizer, TextSource(str(demo_text[1])), 64, 40)
    assert calibrated_share(later, after) == 1.0
    assert calibrated_share(later, before) < 0.1
    assert calibrated_share(heldout.token_ids, after) < NOTEWORTHY_SHARE
    worse, better = (perplexity(load(d, device="cpu"), heldout).perplexity for d in (cut, healed))
    assert better < worse, "on text that it has not seen"


def test_shapes_stay_and_the_checkpoint_verifies(healed: Path, cut: Path) -> None:
    shapes = [model_shape(read_config(folder)) for folder in (healed, cut)]
    assert shapes[0] == shapes[1]
    checks = list(verify(healed))
    assert len(checks) == 7 and all(check.ok for check in checks), checks
    assert "42 fitted or healed ones have the SHA-256" in checks[2].detail
    assert "which states" in checks[5].detail, "a loss of its own"
    plan = load_plan(healed / PLAN_FILE)
    assert len(plan.fitted) == len(LINEARS) * len(plan.dense_layers)
    (healing,) = plan.provenance["healing"]
    assert healing["loss_after"] < healing["loss_before"]


def test_the_card_names_the_healing_and_its_text_does_not_count(
    healed: Path, demo_text: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(healed, tmp_path / "healed"))
    text = ("--data", demo_text[0], "--sequences", "4", "--sequence-length", "64")
    quality = document("evaluate", "card", folder, *text, "--json")
    assert quality["healed_on"] == ["calibration.jsonl"]
    assert quality["corpora"][0]["calibrated_on"]
    assert "did not learn from" in quality["verdict"]["sentence"]
    assert "† The model learnt from this corpus" in (folder / "README.md").read_text()


@pytest.mark.all
def test_a_healed_checkpoint_heals_again(
    quick: HealConfig, healed: Path, demo_text: tuple[Path, Path], tmp_path: Path
) -> None:
    """From the loss that the first healing stated, and with both texts in the plan and the card."""
    (first,) = load_plan(healed / PLAN_FILE).provenance["healing"]
    other = Path(shutil.copy(demo_text[0], tmp_path / "other.jsonl"))
    gentle = replace(quick, calibration=str(other), learning_rate=quick.learning_rate / 10, seed=1)
    twice = heal(healed, gentle, tmp_path / "twice")
    assert twice.loss_before == pytest.approx(first["loss_after"], abs=1e-6)
    provenance = load_plan(tmp_path / "twice" / PLAN_FILE).provenance
    assert provenance["healing"][0] == first
    assert healing_sources(provenance) == [quick.calibration, str(other)]
    assert (tmp_path / "twice" / "README.md").read_text().count("Healed on") == 2


@pytest.mark.parametrize("learning_rate", [1e-9, 100.0])
def test_nothing_is_written_where_nothing_is_won(
    learning_rate: float, cut: Path, quick: HealConfig, tmp_path: Path
) -> None:
    """By steps that bfloat16 rounds away, or after which every check finds a worse model."""
    short = replace(quick, learning_rate=learning_rate, steps=12)
    with pytest.raises(InputError, match=r"nothing was written.* no lower with the best weights"):
        heal(cut, short, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_command_and_its_bad_input(
    cut: Path, demo_text: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = ("--data", demo_text[0], "--sequences", "16", "--sequence-length", "64")
    changed = Path(shutil.copytree(cut, tmp_path / "changed"))
    (changed / "tokenizer.json").write_text((changed / "tokenizer.json").read_text() + "\n")
    with monkeypatch.context() as patch:  # refused before the lessons
        patch.delattr("grasp_deploy.healing.heal.LoraDistiller")
        refused = grasp_deploy("heal", changed, *text, "-o", "out")
        assert_refused(refused, "tokenizer.json is not the file that manifest.json states")
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        refused = grasp_deploy("heal", cut, *text, "-o", "out")
        assert_refused(refused, "disk of out has 0 bytes left")
    shutil.rmtree(changed)
    assert not list(tmp_path.iterdir())
    record = document("heal", cut, *text, "-o", "out", "--steps", "30", "--json")
    assert record["loss_dense"] < record["loss_after"] < record["loss_before"]


def test_distillation_is_the_mean_divergence_over_positions() -> None:
    """Two tokens, one position each way: 0.75·ln(0.75/0.5) + 0.25·ln(0.25/0.5), and 0."""
    dense = torch.tensor([[[math.log(3.0), 0.0], [1.0, 1.0]]])
    pruned = torch.tensor([[[5.0, 5.0], [7.0, 7.0]]])
    expected = (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)) / 2
    assert float(distillation_loss(dense, pruned)) == pytest.approx(expected, rel=1e-5)
    assert float(distillation_loss(dense, dense + 3)) == pytest.approx(0, abs=1e-6)
