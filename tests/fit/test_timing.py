"""`fit`: a compression whose limit is corrected once by the time of its mask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.plan import pruned_shape
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.result import Compressed
from grasp_deploy.compression.timing import FIRST, LAST, Measure
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.report.tables import time_table
from tests.bench.records import lines_of, row_of
from tests.cli.command import assert_refused, document, grasp_deploy
from tests.latency_tables import AT, DECODE, FFN, KV, write_table

pytestmark = pytest.mark.slow  # each compresses the embedded model
ASKED = DECODE / 1.25


@pytest.fixture
def config(short_config: CompressConfig, tmp_path: Path) -> CompressConfig:
    """A compression to 1.25 times the dense model's speed, in a few seconds."""
    table = write_table(Path(short_config.model), tmp_path / "table.json", tile=32)
    quick: dict[str, Any] = {"sequences": 8, "sequence_length": 64, "scale_epochs": 0, "rounds": 1}
    return replace(short_config, keep=None, speedup=1.25, **quick, **table)


def seconds_of(shape: ModelShape) -> float:
    """The time that the table predicts."""
    channels = sum(layer.intermediate_size for layer in shape.layers) / (6 * 512)
    groups = sum(layer.num_key_value_heads for layer in shape.layers) / (6 * 4)
    return DECODE * (1 - FFN - KV + FFN * channels + KV * groups)


class Clock:
    """A machine on which pruned shapes take `factor` times what the table predicts."""

    def __init__(self, factor: float, noise: float = 0.001) -> None:
        self.factor, self.noise, self.timed = factor, noise, list[ModelShape]()

    def __call__(self, shape: ModelShape) -> list[float]:
        self.timed.append(shape)
        return [self.factor * seconds_of(shape) * (1 + self.noise * i) for i in (-1, 0, 1)]


def fitted(
    config: CompressConfig,
    output: Path,
    measure: Measure | None,
    on_progress: OnProgress = ignore_progress,
    resume: bool = False,
) -> tuple[Compressed, dict[str, Any]]:
    made = compress(config, output, measure=measure, on_progress=on_progress, resume=resume)
    return made, made.plan.provenance["time"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"method": "progressive"}, {"method": "magnitude", "rounds": CompressConfig.rounds}],
    ids=["grasp", "progressive", "magnitude"],
)
def test_a_mask_that_is_too_slow_is_chosen_once_more(
    config: CompressConfig, changes: dict[str, Any], tmp_path: Path
) -> None:
    clock = Clock(1.1)
    made, time = fitted(replace(config, **changes), tmp_path / "out", clock)
    first, last = clock.timed
    assert last == made.pruned == pruned_shape(made.plan, made.dense) != first
    assert time["first"]["predicted_seconds"] == pytest.approx(seconds_of(first))
    assert time["first"]["measured_seconds"] == pytest.approx(1.1 * seconds_of(first))
    assert time["predicted_seconds"] == pytest.approx(seconds_of(last))
    tile = DECODE * FFN * 32 / (6 * 512) + DECODE * KV / (6 * 4)  # more would have fitted
    assert ASKED - 1.1 * tile < time["measured_seconds"] <= ASKED * (1 + 1e-9)
    assert all(layer.intermediate_size % 32 == 0 for layer in last.layers)
    budget = made.plan.provenance["budget"]
    assert budget["kept_cost"] <= budget["limit"] < 1e9 * (ASKED - DECODE * (1 - FFN - KV))


def test_a_mask_close_enough_stays_and_prices_alone_predict(
    config: CompressConfig, tmp_path: Path
) -> None:
    made, time = fitted(config, tmp_path / "measured", Clock(1.01))
    assert time["first"] is None
    assert time["measured_seconds"] == pytest.approx(1.01 * time["predicted_seconds"])
    noisy, time_of_noisy = fitted(config, tmp_path / "noisy", Clock(1.1, noise=0.2))
    assert noisy.plan.mask.equal(made.plan.mask) and time_of_noisy["first"] is None
    alone, predicted = fitted(config, tmp_path / "priced", None)
    assert alone.plan.mask.equal(made.plan.mask)
    repetitions = [time_of_noisy["dense_seconds"] / s for s in time_of_noisy["repetition_seconds"]]
    spread = f"({min(repetitions):.2f}-{max(repetitions):.2f})"
    assert spread in row_of(lines_of(time_table(time_of_noisy)), "measured")
    assert "measured_seconds" not in predicted
    assert predicted["predicted_seconds"] == time["predicted_seconds"] <= ASKED


@pytest.mark.parametrize(
    ("speedup", "reason"), [(1.25, "slower than the dense model"), (2.0, "cannot be reached")]
)
def test_a_measurement_that_no_mask_can_answer_changes_nothing_and_is_said(
    config: CompressConfig, speedup: float, reason: str, tmp_path: Path
) -> None:
    config = replace(config, speedup=speedup)
    alone, _ = fitted(config, tmp_path / "priced", None)
    made, time = fitted(config, tmp_path / "out", Clock(1.4))
    assert made.plan.mask.equal(alone.plan.mask)
    assert time["first"] is None and reason in time["correction_left_out"]
    assert any("No correction: " in line for line in lines_of(time_table(time), 100))


def test_a_killed_run_does_not_measure_again(config: CompressConfig, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(row: dict[str, Any]) -> None:
        if row["stage"] == "compensation" and row["step"] > 3:
            raise Killed

    clock, output = Clock(1.1), tmp_path / "out"
    with pytest.raises(Killed):
        fitted(config, output, clock, on_progress=kill)
    assert {f"{FIRST}.safetensors"} <= {p.name for p in (tmp_path / "out.partial").iterdir()}
    made, time = fitted(config, output, clock, resume=True)
    assert clock.timed[1:] == [made.pruned]
    again, whole = fitted(config, tmp_path / "again", Clock(1.1))
    assert again.plan.mask.equal(made.plan.mask) and whole == time
    assert {FIRST, LAST} <= made.plan.provenance["seconds"].keys()


def test_the_command_measures_with_the_tables_engine(
    config: CompressConfig, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    measured = ("--engine", "transformers", "--device", "cpu", "--tile", "128", "--steps", "2")
    at = ("--batch", "8", "--context", "64")
    few = ("--new-tokens", "8", "--repetitions", "3")
    options = ("--method", "magnitude", "--set", "scale-epochs=0", "--calibration-sequences", "8")
    text = ("--sequence-length", "64", "--calibration", config.calibration[0])
    fit = ("fit", config.model, "-o", output, *options, *text, "--calibration", "self=0")
    for attempt in range(3):  # as the error asks for, where a busy machine makes no price
        table = tmp_path / f"measured-{attempt}.json"
        assert grasp_deploy("table", config.model, *measured, *at, *few, "-o", table).code == 0
        asked = ("--table", table, *at, "--ttft")
        ended = grasp_deploy(*fit, *asked, "0.000001")
        if "make no price" not in ended.stderr:
            break
    assert_refused(ended, "--ttft 1e-06 is beyond reach", "the fastest possible is --ttft")
    most = ended.stderr.split("fastest possible is --ttft")[1].split()[0]
    slower = str(1.05 * float(most))
    time = document(*fit, *asked, slower, "--json")["time"]
    assert (time["phase"], time["batch"], time["context"]) == ("prefill", *AT.values())
    assert time["asked_seconds"] == float(slower) and time["measured_seconds"] > 0
    again = document(*fit, *asked, slower, "--json")
    assert again == {"output": str(output), "time": time}
    assert_refused(grasp_deploy(*fit, *asked, slower, "--dry-run"), "fit measures a time: drop")
