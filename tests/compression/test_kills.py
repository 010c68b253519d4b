"""Killed at random moments: learning goes on to the same bits, exports are whole or not there."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.plan import load_plan
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.config.compress_config import CompressConfig
from tests.crash_runner import DONE, KILLED, Forker, forker
from tests.tiny import save_tiny

KILLS = 20
PRINTABLE = slice(32, 127)  # bytes


@pytest.fixture(scope="module")
def warm() -> Iterator[Forker]:
    with forker() as process:
        yield process


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> CompressConfig:
    """A compression of some hundred steps in each stage."""
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
        criterion_sequences=24,  # what is saved between two kills must fit between them
        compensation_sequences=24,
        epochs=3,
        swap_groups=1,
        scale_epochs=2,
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
) -> tuple[Path, float]:
    """The checkpoint that a run makes which nobody kills, and the seconds it takes."""
    output = tmp_path_factory.mktemp("whole") / "out"
    start = time.monotonic()
    assert warm.run("compress", config=asdict(config), output=str(output), resume=False) == DONE
    assert load_plan(output / "plan.safetensors").fitted, "columns are solved for, and go on so"
    return output, time.monotonic() - start


def siblings(output: Path) -> list[str]:
    return sorted(path.name for path in output.parent.iterdir())


def metrics(folder: Path) -> list[dict[str, object]]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def assert_same_result(found: Path, expected: Path) -> None:
    one, other = load_plan(found / "plan.safetensors"), load_plan(expected / "plan.safetensors")
    for name in ("scores", "mask", "scales"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert metrics(found) == metrics(expected)
    weights = "model.safetensors"
    assert (found / weights).read_bytes() == (expected / weights).read_bytes()


@pytest.mark.slow
def test_learning_goes_on_to_the_same_bits(
    warm: Forker, config: CompressConfig, uninterrupted: tuple[Path, float], tmp_path: Path
) -> None:
    whole, seconds = uninterrupted
    moments, kills = random.Random(1), 0
    for chain in range(KILLS):
        output = tmp_path / str(chain) / "out"
        resume = False
        while not output.exists():
            after = moments.uniform(0, seconds / 5)
            job = {"config": asdict(config), "output": str(output), "resume": resume}
            kills += warm.run("compress", after, **job) == KILLED
            resume = True
        assert_same_result(output, whole)
        if kills >= KILLS:
            break
    assert kills >= KILLS


class Moments:
    """Moments to kill an export at: anywhere, or close to its end, where the folder gets its name.

    They count from `begin_at_share` of the tensors on.
    """

    def __init__(self, where: str) -> None:
        self._earliest = {"anywhere": 0.0, "at the end": 0.85}[where]
        self.begin_at_share = {"anywhere": 0.0, "at the end": 1.0}[where]
        self._end_seconds, self._random, self.kills = 0.1, random.Random(where), 0

    def next(self) -> float:
        return self._end_seconds * self._random.uniform(self._earliest, 1.1)

    def learn(self, how_it_ended: str) -> None:
        """Home in on the end, wherever the load of the machine moves it."""
        self.kills += how_it_ended == KILLED
        self._end_seconds *= 1.05 if how_it_ended == KILLED else 0.9


def checks(folder: Path) -> list[bool | None]:
    return [check.ok for check in verify(folder)]


def files_are_whole(folder: Path) -> bool:
    return next(verify(folder)).ok is True


@pytest.fixture(scope="module")
def deep(warm: Forker, config: CompressConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two plans, `a` and `b`, of one model of many tensors, with their checkpoints."""
    folder = tmp_path_factory.mktemp("deep")
    save_tiny("llama", folder / "model", num_hidden_layers=6)
    for name, keep in (("a", 0.6), ("b", 0.5)):
        short = {"model": str(folder / "model"), "keep": keep, "sequences": 4, "epochs": 1}
        job = {**asdict(config), **short, "scale_epochs": 1}
        assert warm.run("compress", config=job, output=str(folder / name), resume=False) == DONE
    return folder


def export_arguments(
    deep: Path, name: str, output: Path, begin_at_share: float
) -> dict[str, object]:
    plan = str(deep / name / "plan.safetensors")
    folders = {"model": str(deep / "model"), "output": str(output)}
    return {**folders, "plan": plan, "shard_bytes": 100_000, "begin_at_share": begin_at_share}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["anywhere", "at the end"])
def test_a_killed_export_leaves_all_or_nothing(
    warm: Forker, deep: Path, where: str, tmp_path: Path
) -> None:
    output, moments = tmp_path / "out", Moments(where)
    arguments = export_arguments(deep, "a", output, moments.begin_at_share)
    while moments.kills < KILLS:
        moments.learn(warm.run("export", moments.next(), **arguments))
        if output.exists():
            assert files_are_whole(output)
            shutil.rmtree(output)
    assert warm.run("export", **arguments) == DONE
    assert siblings(output) == ["out"]
    assert checks(output) == [True] * 6


@pytest.mark.slow
@pytest.mark.parametrize("where", ["anywhere", "at the end"])
def test_a_killed_overwrite_leaves_the_old_or_the_new_or_nothing(
    warm: Forker, deep: Path, where: str, tmp_path: Path
) -> None:
    output, moments = tmp_path / "out", Moments(where)
    old, new = (export_arguments(deep, name, output, moments.begin_at_share) for name in "ab")
    plans = {(deep / name / "plan.safetensors").read_bytes() for name in ("a", "b")}
    assert len(plans) == 2
    assert warm.run("export", **old) == DONE
    while moments.kills < KILLS:
        moments.learn(warm.run("export", moments.next(), **new, overwrite=True))
        if output.exists():
            assert files_are_whole(output)
            assert (output / "plan.safetensors").read_bytes() in plans
        old, new = new, old
    assert warm.run("export", **new, overwrite=True) == DONE
    assert siblings(output) == ["out"]
    assert checks(output) == [True] * 6
