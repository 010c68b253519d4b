"""A recovery goes on from what it began with, and computes layers twice where that is asked for."""

import logging
import shutil
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from grasp_deploy.checkpoint.card.model_card import intact_plan, lasting_files, renew_card
from grasp_deploy.compression import recovery
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.run_options import RunOptions, Start
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.distilling import Distiller
from grasp_deploy.pruning.training import recompute
from tests.checkpoint.card.test_model_card import record
from tests.compression.conftest import Killed, MakeConfig, kill_in
from tests.tiny import RANDOM

pytestmark = pytest.mark.slow  # each compresses and recovers a model


def test_a_resumed_recovery_reads_what_it_began_with(
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever has become of the file since, and with room for its state once more."""
    caplog.set_level(logging.INFO)
    text = tmp_path / "text.txt"
    config = make_config(keep=0.6, recover=4 * 1024, rounds=1, scale_epochs=0)
    shutil.copy(config.calibration[0], text)
    config = replace(config, calibration=(str(text), "self"))
    whole = compress(config, tmp_path / "whole").plan
    monkeypatch.setattr("grasp_deploy.compression.stages.SAVE_EVERY_SECONDS", 0.0)
    with pytest.raises(Killed):
        compress(config, RunOptions(tmp_path / "out", on_progress=kill_in("recovery", 2)))
    assert (told := "text: the one that the run began with") not in caplog.text
    text.write_text("ABC" + text.read_text())
    saved = (tmp_path / "out.partial" / "recovery.safetensors").stat().st_size
    asked: list[int] = []
    room, go_on = recovery.state_room, recovery._Recovery._go_on

    def counted(*given: Any) -> int:
        asked.append(room(*given))
        return asked[-1]

    monkeypatch.setattr(sys.modules[compress.__module__], "state_room", counted)

    def unmapped(self: Any) -> None:
        go_on(self)
        assert "recovery.safetensors" not in Path("/proc/self/maps").read_text()

    monkeypatch.setattr(recovery._Recovery, "_go_on", unmapped)
    again = compress(config, RunOptions(tmp_path / "out", resume=True)).plan
    assert asked == [pytest.approx(saved, rel=0.05)], "of float32 weights"
    assert again.fitted == whole.fitted
    assert again.provenance["seconds"].keys() == whole.provenance["seconds"].keys()
    assert caplog.text.count(told) == 2, "to calibrate and to recover on"


def test_a_check_that_overflows_ends_a_resumed_recovery_too(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the weights that it would go on with are finite, and later checks too."""
    measure = Distiller.measure

    def overflows_third(self: Distiller, rows: Tensor) -> Any:
        calls.append(rows)
        found = measure(self, rows)
        return found._replace(divergence=found.divergence * (inf if len(calls) == 3 else 1))

    calls: list[Tensor] = []
    monkeypatch.setattr(Distiller, "measure", overflows_third)
    config = make_config(keep=0.6, method=RANDOM, compensation=False, scale_epochs=0)
    config = replace(config, recover=16 * 1024)
    whole = compress(config, tmp_path / "whole").plan
    calls.clear()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop = Mock(side_effect=KeyboardInterrupt)
        patch.setattr("grasp_deploy.compression.compress.write_checkpoint", stop)
        compress(config, tmp_path / "out")
    again = compress(config, RunOptions(tmp_path / "out", resume=True)).plan
    records = [plan.provenance["healing"][0] for plan in (whole, again)]
    assert records[0]["best_step"] > 0 and records[0]["tokens"] == records[1]["tokens"] < 15 * 1024
    assert again.fitted == whole.fitted
    assert records[0]["heldout_tokens"] % 31 == 0, "of 32 in a sequence"
    metrics = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) * 1024 == records[0]["tokens"], "the step that overflowed has its row"


def test_a_recovery_goes_on_from_the_checkpoint_that_it_began_with(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever `evaluate card` has written into that since, before the end or after it."""
    cut, out, other = (tmp_path / name for name in ("cut", "out", "other"))
    config = make_config(keep=0.6, method=RANDOM, compensation=False, scale_epochs=0)
    with monkeypatch.context() as patch:  # an earlier release made it
        patch.setattr("grasp_deploy.compression.result.versions", lambda: {"grasp_deploy": "0"})
        compress(config, cut)
    healing, start = replace(config, recover=4 * 1024), Start(checkpoint=cut)
    with pytest.raises(Killed):
        compress(healing, RunOptions(out, on_progress=kill_in("recovery", 0)), start)
    shutil.copytree(tmp_path / "out.partial", tmp_path / "other.partial")
    for excess in (0.02, 0.9):  # it ends, and is known as ended
        renew_card(cut, intact_plan(cut), record(excess), lasting_files(cut))
        compress(healing, RunOptions(out, resume=True), start)
        monkeypatch.delattr("grasp_deploy.compression.compress.recover", raising=False)
    compress(replace(config, keep=0.5), RunOptions(cut, overwrite=True))
    with pytest.raises(InputError, match="pruned checkpoint"):
        compress(healing, RunOptions(other, resume=True), start)


def test_what_is_computed_twice_to_spare_memory_is_the_same(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By learning gates and scales, and by recovery."""
    twice: list[str] = []
    places = (
        "grasp_deploy.pruning.training.recompute",
        "grasp_deploy.compression.recovery.recompute",
    )
    for place in places:

        def spy(model: nn.Module, place: str = place) -> None:
            twice.append(place)
            recompute(model)

        monkeypatch.setattr(place, spy)
    config = make_config(keep=0.6, sequences=8, recover=1024, rounds=1)
    plain, spared = (
        compress(replace(config, gradient_checkpointing=is_on), tmp_path / str(is_on)).plan
        for is_on in (False, True)
    )
    assert twice == [*places]
    assert torch.equal(plain.mask, spared.mask)
    torch.testing.assert_close(plain.scales, spared.scales)
