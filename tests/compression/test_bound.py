"""A bound on the loss: the last step within it stays, and a run goes on after a kill."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.prepare import prepare
from grasp_deploy.compression.result import (
    Compressed,
    beyond,
    compression_record,
    finished_plan,
)
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.compression.walks import compress_within
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from tests.compression.conftest import Killed, MakeConfig, kill_at
from tests.kills import contents
from tests.tiny import RANDOM


@pytest.fixture(scope="module")
def config(make_config: MakeConfig) -> CompressConfig:
    return make_config(max_loss=2.5, bound_step=0.1)


@pytest.fixture(scope="module")
def made(config: CompressConfig, tmp_path_factory: pytest.TempPathFactory) -> Compressed:
    return compress_within(config, RunOptions(tmp_path_factory.mktemp("bound") / "out"))


def test_the_smallest_budget_within_the_bound_stays(made: Compressed) -> None:
    record = compression_record(made)
    bound = record["bound"]
    assert bound["keep"] < 0.85, "it is neither the first step nor the last"
    assert bound["excess"] + bound["excess_error"] <= 2.5
    assert bound["next"]["keep"] == pytest.approx(bound["keep"] - 0.1)
    assert bound["next"]["excess"] + bound["next"]["excess_error"] > 2.5
    lost = record["heldout_loss_pruned"] - record["heldout_loss_dense"]
    assert lost == pytest.approx(bound["excess"], abs=1e-5)
    assert record["kept_cost"] / record["total_cost"] <= bound["keep"]
    assert [check.ok for check in verify(made.output)] == [True] * 7  # columns were refitted
    assert sorted(path.name for path in made.output.parent.iterdir()) == ["out"]
    options = json.loads((made.output / "compress_config.json").read_text())
    stored = CompressConfig.from_dict(options, "it")
    assert finished_plan(RunOptions(made.output, resume=True), prepare(stored)), (
        "it is what the same options make"
    )
    assert (made.output / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_checkpoint(
    config: CompressConfig, made: Compressed, tmp_path: Path
) -> None:
    output, kills = tmp_path / "out", 0
    while True:
        try:
            follow = kill_at(40 + 5 * kills)
            compress_within(config, RunOptions(output, bool(kills), on_progress=follow))
            break
        except Killed:
            kills += 1
            assert not output.exists()
    assert kills >= 3
    assert contents(output) == contents(made.output)


@pytest.mark.parametrize("step", [0.4, 0.5])
def test_no_step_is_too_wide_to_reach_the_smallest_budget(
    step: float, make_config: MakeConfig, tmp_path: Path
) -> None:
    quick = {"scale_epochs": 0, "rounds": 1, "method": "progressive", "targets": "ffn"}
    config = make_config(max_loss=90.0, bound_step=step, **quick)
    record = compression_record(compress_within(config, RunOptions(tmp_path / "out")))
    assert record["bound"]["keep"] < 0.2 and record["bound"]["next"] is None
    with pytest.raises(InputError, match=f"smallest possible is --keep {record['bound']['keep']}"):
        prepare(make_config(keep=record["bound"]["keep"] - 1e-4, targets="ffn"))


def test_a_bound_that_the_first_step_breaks(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(max_loss=1e-6, scale_epochs=0, rounds=1, method="progressive")
    with pytest.raises(InputError, match=r"even the largest .* to keep 0.95, costs \+0\.\d+ ± "):
        compress_within(config, RunOptions(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [1, 2])
def test_a_bound_is_held_on_the_end_of_each_text(
    make_config: MakeConfig, tmp_path: Path, count: int
) -> None:
    """There other documents stand than those that were learnt from."""
    first = make_config(keep=0.5).calibration[0]
    second = shutil.copy(first, tmp_path / "second.txt")
    texts = (*(first, str(second))[:count], "self=0")
    run = prepare(make_config(max_loss=0.1, calibration=texts))
    heldout = run.blocks.heldout
    assert len(heldout) > 2 and heldout.equal(run.text.token_ids[-len(heldout) :])
    spread = prepare(make_config(keep=0.5, calibration=texts))
    assert not spread.blocks.heldout.equal(spread.text.token_ids[-len(heldout) :])


def test_a_gain_leaves_no_more_room(made: Compressed) -> None:
    for excess, error, is_over in ((0.05, 0.04, False), (-0.5, 0.09, False), (-0.5, 0.11, True)):
        provenance = {**made.plan.provenance, "excess": excess, "excess_error": error}
        assert bool(beyond(replace(made.plan, provenance=provenance), 0.1)) == is_over


def test_a_bound_beside_a_budget(make_config: MakeConfig, tmp_path: Path) -> None:
    """A budget within the bound is made; one beyond it leaves nothing behind."""
    quick = {"keep": 0.5, "method": RANDOM, "scale_epochs": 0}
    made = compress(make_config(**quick, max_loss=90.0), tmp_path / "bounded")
    excess, error = (made.plan.provenance[name] for name in ("excess", "excess_error"))
    record = compression_record(made)
    lost = record["heldout_loss_pruned"] - record["heldout_loss_dense"]
    assert excess == pytest.approx(lost, abs=1e-5) and error > 0
    with pytest.raises(InputError, match=r"over the bound of 0\.001: .* --calibration-sequences"):
        compress(make_config(**quick, max_loss=0.001), tmp_path / "beyond")
    assert not list(tmp_path.glob("beyond*"))
