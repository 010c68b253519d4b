"""Recovery: a pruned model comes nearer to its dense one, and is a checkpoint like any other."""

import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.compression import recovery, recovery_text
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.prepare import prepare
from grasp_deploy.compression.result import compression_record
from grasp_deploy.compression.run_options import Start
from grasp_deploy.compression.split_text import Heldout
from grasp_deploy.compression.stages import passes_of
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import TextSource, read_blocks
from grasp_deploy.demo.run import MODEL
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.perplexity import perplexity
from grasp_deploy.pruning.distilling import Distiller
from grasp_deploy.pruning.objective import LossError
from tests.cli.command import assert_refused, document, grasp_deploy
from tests.compression.conftest import MakeConfig, compressed
from tests.tiny import RANDOM, tiny_tokenizer

pytestmark = pytest.mark.slow  # each compresses or recovers the embedded model


# Of a checkpoint that lost much: a random mask, and nothing that makes up for it.
RANDOM_MASK: dict[str, Any] = {"method": RANDOM, "compensation": False, "scale_epochs": 0}


@pytest.fixture(scope="module")
def config(short_config: CompressConfig) -> CompressConfig:
    return replace(short_config, **RANDOM_MASK, rounds=CompressConfig.rounds, recover=32_000)


@pytest.fixture(scope="module")
def cut(config: CompressConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("cut") / "out"
    compress(replace(config, recover=None, calibration_column="text"), output)
    return output


@pytest.fixture(scope="module")
def recovered(config: CompressConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("recovered") / "out"
    _, rows = compressed(config, output)
    told = [row for row in rows if row["stage"] == "recovery"]
    assert [row["step"] for row in told] == [*range(33)], "of a thousand tokens each"
    assert {row["steps"] for row in told} == {32}
    return output


def test_other_text_gets_better_and_every_link_is_proven(
    recovered: Path, cut: Path, demo_text: tuple[Path, Path]
) -> None:
    shapes = [model_shape(read_config(folder)) for folder in (recovered, cut)]
    assert shapes[0] == shapes[1]
    checks = list(verify(recovered))
    assert len(checks) == 7 and all(check.ok for check in checks), checks
    assert "55 refitted or recovered ones have the SHA-256" in checks[2].detail
    assert "which states" in checks[5].detail, "a loss of its own"
    assert "not their quality" in checks[5].detail
    heldout = read_blocks(load_tokenizer(cut), TextSource(str(demo_text[1])), 64, 40)
    worse, better = (perplexity(load(d, device="cpu"), heldout) for d in (cut, recovered))
    assert better.loss_nats_per_token < worse.loss_nats_per_token - 0.1
    plan = load_plan(recovered / PLAN_FILE)
    (record,) = plan.provenance["healing"]
    assert record["loss_dense"] < record["loss_after"] < record["loss_before"]
    assert record["best_step"] > 0 and record["tokens"] <= 32_000
    card = (recovered / "README.md").read_text()
    assert f"Recovered by the dense model's predictions on {record['tokens']:,} tokens" in card


def test_the_text_goes_on_and_leaves_out_what_is_held_out(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half is the model's own: what it wrote for calibration, and more of it."""
    options = {"keep": 0.6, "sequences": 8, "recover": 64 * 32, "rounds": 1, "scale_epochs": 0}
    config = make_config(**options)
    config = replace(config, calibration=(config.calibration[0], "self"))
    told: list[Any] = []
    text_of = recovery_text.text_of

    def tell(run: Any, *rest: Any) -> Any:
        told.append((run, text_of(run, *rest)))
        return told[-1][1]

    monkeypatch.setattr(recovery_text, "text_of", tell)
    plan = compress(config, tmp_path / "out").plan
    ((run, text),) = told
    own = run.text.token_ids[1::2]
    rows = text.token_ids
    assert len(rows.unique(dim=0)) == len(rows) == 62, "nothing twice"
    assert int((rows[:, None] == own).all(-1).any(1).sum()) == 3, "of four one is held out"
    assert not (rows[:, None] == run.blocks.heldout).all(-1).any()
    assert [part.sequences for part in text.parts] == [31, 31]
    assert plan.provenance["seconds"]["recovery-text"] > 0
    assert passes_of(config)["recovery-text"] == 28 + 50


@pytest.mark.parametrize(
    ("divergences", "expected"),
    [
        ([1.0, 1.0, 1.0], True),
        ([0.5, 0.5, 2.1], False),  # a kind is further away
        ([1.6, 1.6, 1.5], False),  # it was nearer already
        ([2.1, 1.1, 1.3], True),  # so is a sequence, which is no kind
    ],
)
def test_the_best_is_nearest_and_further_away_on_no_kind(
    divergences: list[float], expected: bool
) -> None:
    first, best = (Heldout([0, 0, 1], [nats] * 3, 4.0, 3.0) for nats in (2.0, 1.5))
    assert Heldout([0, 0, 1], divergences, 9.0, 3.0).is_better(first, best) is expected


@pytest.mark.parametrize(
    ("rate", "why"),
    [(0.0, "on held-out"), (5.0, "on held-out"), (float("inf"), "the .* is nan.*: the model o")],
)
def test_nothing_is_written_where_nothing_is_won(
    rate: float,
    why: str,
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A compression keeps its weights and says so; a recovery by itself is refused."""
    monkeypatch.setattr(recovery, "RATE", rate)
    cut, config = tmp_path / "cut", make_config(keep=0.6, **RANDOM_MASK)
    assert "recovery" not in compression_record(compress(config, cut)), "none was asked for"
    short = replace(config, recover=4_000)
    with caplog.at_level(logging.WARNING):
        made = compress(short, tmp_path / "out")
    said = f"recovery won nothing: {why}"
    assert re.search(said, caplog.text)
    assert "healing" not in made.plan.provenance and not made.plan.fitted
    assert compression_record(made)["recovery"] is None
    names = "model.safetensors"
    assert (tmp_path / "out" / names).read_bytes() == (cut / names).read_bytes()
    with pytest.raises(InputError, match=f"{said}.* nothing was written"):
        compress(short, tmp_path / "healed", Start(checkpoint=cut))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "out"]


def test_the_weights_of_the_best_check_are_written(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the last ones, which live on in the same memory; weights here are float32.

    Step 14 fails, so the tokens from there on do not count.
    """
    kept: list[dict[str, torch.Tensor]] = []
    learn, judge = Distiller.learn, iter([True, False, False, False])

    def learnt(self: Distiller, *more: Any) -> float:
        if len(kept) == 13:
            raise LossError("no loss")
        value = learn(self, *more)
        kept.append({name: part.clone() for name, part in self.parts.items()})
        return value

    monkeypatch.setattr(Distiller, "learn", learnt)
    monkeypatch.setattr(Heldout, "is_better", lambda *_: next(judge))
    config = make_config(keep=0.6, recover=16 * 1024, rounds=1, scale_epochs=0)
    plan = compress(config, tmp_path / "out").plan
    (record,) = plan.provenance["healing"]
    assert record["best_step"] < len(kept) == 13 < record["steps"]
    assert record["tokens"] == 13 * 1024
    written = load_file(tmp_path / "out" / "model.safetensors")
    for name, weight in kept[record["best_step"] - 1].items():
        assert torch.equal(written[name], weight), name


def test_a_second_recovery_learns_other_text_of_the_models_own(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Heldout, "is_better", lambda *_: True)
    options = {"sequences": 8, "recover": 64 * 32, "rounds": 1, "scale_epochs": 0}
    config = make_config(keep=0.6, calibration=("self",), **options)
    compress(config, tmp_path / "one")
    plan = compress(config, tmp_path / "two", Start(checkpoint=tmp_path / "one")).plan
    texts = [healing["text"]["token_ids_sha256"] for healing in plan.provenance["healing"]]
    assert len(texts) == len(set(texts)) == 2


@pytest.mark.parametrize("own", ["self=0", "self"])
def test_a_text_that_has_changed_since_is_not_learnt_from(
    make_config: MakeConfig, tmp_path: Path, own: str
) -> None:
    """Its sequences would be others than those that are held out; but it may go on elsewhere."""
    config, text = make_config(keep=0.6, recover=64 * 32), tmp_path / "text.txt"
    whole = Path(config.calibration[0]).read_text()
    text.write_text(whole)
    run = prepare(replace(config, calibration=(str(text), own), sequences=8))
    for start in ("A", "A new line.\n"):
        text.write_text(start + whole)
        with pytest.raises(InputError, match=r"text\.txt has changed"):
            recovery_text.text_of(run, Mock())
    if own == "self=0":
        text.write_text(whole + whole)  # calibration read the beginning alone
        assert len(recovery_text.text_of(run, Mock()).token_ids) > len(run.blocks.train)


def test_text_that_recovery_cannot_read(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = make_config(keep=0.6, recover=1, rounds=1, scale_epochs=0, sequences=2)
    with pytest.raises(InputError, match=r"1 sequence, held out .* give --recover 64 or more"):
        prepare(short)
    prepare(replace(short, recover=64))
    monkeypatch.setattr("grasp_deploy.compression.split_text.memory_bytes", lambda: 8 * 64)
    prepare(replace(short, recover=64))
    with pytest.raises(InputError, match=r"--recover 65 take 520 bytes, .* 512 bytes of"):
        prepare(replace(short, recover=65))


def test_the_command_and_its_bad_input(
    cut: Path, demo_text: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = ("--calibration", demo_text[0], "--calibration", "self=0")
    changed = Path(shutil.copytree(cut, tmp_path / "changed"))
    (changed / "tokenizer.json").write_text((changed / "tokenizer.json").read_text() + "\n")
    with monkeypatch.context() as patch:  # refused before a weight is loaded
        patch.delattr("grasp_deploy.compression.compress.plan_of_checkpoint")
        refused = grasp_deploy("heal", changed, "-o", "out")
        assert_refused(refused, "tokenizer.json is not the file that manifest.json states")
        other = Path(shutil.copytree(MODEL, tmp_path / "other"))
        tiny_tokenizer().save_pretrained(other)
        refused = grasp_deploy("heal", cut, *text, "--model", other, "-o", "out")
        assert_refused(refused, "the tokens of", "are not those of")
        shutil.rmtree(other)
        refused = grasp_deploy("heal", cut, "-o", "out")
        repeated = f"repeat --calibration {demo_text[0]}"
        assert_refused(refused, repeated, str(cut))
        refused = grasp_deploy("heal", cut, *text, "-o", cut, "--overwrite")
        assert_refused(refused, "is what is recovered: name another folder")
        enough = 2 * (cut / "model.safetensors").stat().st_size  # for the weights alone
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=enough))
        refused = grasp_deploy("heal", cut, *text, "-o", "out")
        assert_refused(refused, "disk of out has", "and the run takes")
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        plain = changed / "plain.txt"  # to which the column of the plan's text is nothing
        plain.write_text(demo_text[0].read_text())
        for given in (text, ("--calibration", plain)):
            refused = grasp_deploy("heal", cut, *given, "-o", "out")
            assert_refused(refused, "disk of out has 0 bytes left")
    shutil.rmtree(changed)
    assert not list(tmp_path.iterdir())
    record = document("heal", cut, *text, "--recover", "8k", "-o", "out", "--json")
    assert not [name for name in record if "loss" in name or "seconds" in name], "of before it"
    first = record["recovery"]
    assert first["loss_dense"] < first["loss_after"] < first["loss_before"]
    again = document("heal", "out", *text, "--recover", "8k", "--seed", "1", "-o", "two", "--json")
    assert again["recovery"]["loss_before"] == pytest.approx(first["loss_after"], abs=2e-3)
    provenance = load_plan(tmp_path / "two" / PLAN_FILE).provenance
    assert len(provenance["healing"]) == 2
    assert (tmp_path / "two" / "README.md").read_text().count("Recovered by") == 2
