"""Killed at any file operation: learning goes on to the same bits, exports are all or nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.plan import load_plan
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.config.compress_config import CompressConfig
from tests.cli.command import run_process
from tests.crash_runner import Forker, forker
from tests.tiny import save_tiny

PRINTABLE = slice(32, 127)  # bytes


@pytest.fixture(scope="module")
def warm() -> Iterator[Forker]:
    with forker() as process:
        yield process


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> CompressConfig:
    """A compression with every stage, of some dozen steps in each."""
    folder = tmp_path_factory.mktemp("base")
    model = save_tiny("llama", folder / "model")
    (folder / "text.txt").write_text(written_by(model, blocks=64, length=32))
    return CompressConfig(
        model=str(folder / "model"),
        keep=0.6,
        calibration=(str(folder / "text.txt"),),
        sequences=64,
        sequence_length=32,
        method="grasp",  # of all methods the one with every stage
        rounds=3,
        criterion_sequences=24,
        compensation_sequences=24,
        epochs=1,
        swap_groups=1,
        scale_epochs=1,
        device="cpu",
    )


@torch.no_grad()
def written_by(model: PreTrainedModel, blocks: int, length: int) -> str:
    """Blocks of text, a token each character, that the model itself writes: on no other text is a
    model that learnt nothing worth coming close to, and the solved columns would not be kept."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(PRINTABLE.start, PRINTABLE.stop, (blocks, 1), generator=generator)
    while ids.shape[1] < length:
        chances = model(input_ids=ids).logits[:, -1, PRINTABLE].softmax(-1)
        following = torch.multinomial(chances, 1, generator=generator) + PRINTABLE.start
        ids = torch.cat([ids, following], 1)
    return "".join(map(chr, ids.flatten().tolist()))


@pytest.fixture(scope="module")
def uninterrupted(
    warm: Forker, config: CompressConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, int]:
    """The checkpoint that a run makes which nobody kills, and its file operations."""
    folder = tmp_path_factory.mktemp("whole")
    ended = warm.run("compress", folder, config=asdict(config), output=str(folder / "out"))
    assert load_plan(folder / "out" / "plan.grasp").fitted, "columns were solved for"
    return folder / "out", ended.operations


def siblings(output: Path) -> list[str]:
    return sorted(path.name for path in output.parent.iterdir())


def metrics(folder: Path) -> list[dict[str, object]]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def assert_same_result(made: Path, expected: Path) -> None:
    plans = [load_plan(folder / "plan.grasp") for folder in (made, expected)]
    for name in ("scores", "mask", "scales"):
        assert torch.equal(*(getattr(plan, name) for plan in plans)), name
    assert metrics(made) == metrics(expected)
    weights = "model.safetensors"
    assert (made / weights).read_bytes() == (expected / weights).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "runs", [5, pytest.param(11, marks=pytest.mark.all), pytest.param(23, marks=pytest.mark.all)]
)
def test_learning_goes_on_to_the_same_bits(
    warm: Forker,
    config: CompressConfig,
    uninterrupted: tuple[Path, int],
    tmp_path: Path,
    runs: int,
) -> None:
    """A chain of runs, each killed a share of the whole further on, and resumed by the next."""
    whole, operations = uninterrupted
    output, kills = tmp_path / "out", 0
    while True:
        # What a resumed run repeats of its start costs it operations too: allow it more each time.
        kill_at = operations // runs + 7 * kills
        job = {"config": asdict(config), "output": str(output), "resume": kills > 0}
        if not warm.run("compress", tmp_path, kill_at, **job).killed:
            break
        kills += 1
        if output.exists():  # killed behind the end, while it cleared away its state
            shutil.rmtree(output.with_name("out.partial"), ignore_errors=True)
            break
    assert kills >= min(3, runs - 2)
    assert siblings(output) == ["out"]
    assert_same_result(output, whole)


@pytest.fixture(scope="module")
def deep(warm: Forker, config: CompressConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two plans, `a` and `b`, of one model of many tensors, with their checkpoints."""
    folder = tmp_path_factory.mktemp("deep")
    save_tiny("llama", folder / "model", num_hidden_layers=6)
    for name, keep in (("a", 0.6), ("b", 0.5)):
        short = {"model": str(folder / "model"), "keep": keep, "sequences": 4, "epochs": 1}
        short |= {"criterion_sequences": 3, "compensation_sequences": 3}
        job = {**asdict(config), **short, "scale_epochs": 1}
        warm.run("compress", folder, config=job, output=str(folder / name))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.all)])
def test_a_killed_export_leaves_the_old_or_the_new_or_nothing(
    warm: Forker, deep: Path, tmp_path: Path, step: int
) -> None:
    """Killed every so many operations, and at each of the last, where the folder gets its name."""
    output = tmp_path / "out"
    folders: dict[str, Any] = {"model": str(deep / "model"), "output": str(output)}
    paths = [deep / name / "plan.grasp" for name in "ab"]
    old, new = ({**folders, "plan": str(path), "shard_bytes": 100_000} for path in paths)
    plans = {path.read_bytes() for path in paths}
    assert len(plans) == 2
    warm.run("export", tmp_path, **old)
    operations = warm.run("export", tmp_path, **new, overwrite=True).operations
    for place in [*range(1, operations - 8, step), *range(operations - 8, operations + 1)]:
        # A run that finds less to clear away than the first takes fewer operations.
        warm.run("export", tmp_path, place, **old, overwrite=True)
        if output.exists():
            assert next(verify(output)).ok is True, "its files are whole"
            assert (output / "plan.grasp").read_bytes() in plans
        old, new = new, old
    assert not warm.run("export", tmp_path, **new, overwrite=True).killed
    assert siblings(output) == ["out"]
    assert [check.ok for check in verify(output)] == [True] * 6


@pytest.mark.slow
@pytest.mark.all
def test_commands_killed_in_every_stage_go_on() -> None:
    """One kill in each stage; `python -m tests.kills` makes 60."""
    pytest.importorskip("peft", reason="healing needs the extra 'heal'")
    ended = run_process("-m", "tests.kills", "--share", "0")
    assert ended.code == 0, ended.stdout + ended.stderr
