"""The times of a budget in time: measured once, kept in a cache, and those of a resumed run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.bench import times as module
from grasp_deploy.bench.throughput import Cell, Sample, bench_throughput
from grasp_deploy.bench.times import cache_file, engine_for, paired_medians, with_times
from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from tests.cli.command import REPOSITORY, assert_refused, document, grasp_deploy
from tests.tiny import tiny_config

SHAPE = model_shape(tiny_config("llama", num_key_value_heads=4).to_dict())
AT = ("--batch", "8", "--context", "64")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A config.json alone: 96 FFN channels and 4 groups a layer."""
    tiny_config("llama", num_key_value_heads=4).to_json_file(tmp_path / "model.json")
    return tmp_path / "model.json"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """No engine: half of the units of a kind saves a fifth; gives the shapes that were timed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked: list[Any] = []

    def timed(dense: Any, shapes: Any, settings: Any, *_: Any) -> list[Cell]:
        asked.append((settings, [shape.layers[0] for shape in shapes]))
        return [cell_of(factor) for factor in (1.0, *([0.8] * len(shapes)))]

    monkeypatch.setattr(module, "timed", timed)
    return asked


def cell_of(factor: float) -> Cell:
    """Three rounds, of which the second is slow for every model."""
    samples = [Sample(1.0, 0.2 * factor * slow, 0.01 * factor * slow) for slow in (1.0, 1.5, 0.9)]
    sizes: Any = {"batch": 8, "prompt_tokens": 32, "new_tokens": 32}
    return Cell(model="m", samples=samples, **sizes)


def config_of(model: Path, **options: Any) -> CompressConfig:
    given: Any = {"model": str(model), "batch": 8, "context": 64, "speedup": 1.2}
    return CompressConfig(**{**given, **options})


def test_three_shapes_are_measured_once_for_each_point(model: Path, measured: list[Any]) -> None:
    config, told = with_times(config_of(model))
    (settings, (channels, groups)), times = measured[0], config.times
    assert (settings.batches, settings.prompt_tokens, settings.new_tokens) == ((8,), 32, 32)
    assert (channels.intermediate_size, channels.num_key_value_heads) == (48, 4)
    assert (groups.intermediate_size, groups.num_key_value_heads) == (96, 2)
    assert times is not None and times.channels_share == times.groups_share == 0.5
    assert times.dense_seconds == 0.01
    assert times.fewer_groups_seconds == pytest.approx(0.008)
    assert "measured now" in told and "10 ms" in told
    again, told = with_times(config_of(model, speedup=1.3))
    assert again.times == times and len(measured) == 1 and "kept in" in told
    with_times(config_of(model, context=32))
    assert len(measured) == 2


def test_models_are_compared_round_by_round() -> None:
    """Rounds may differ by more than models do."""
    cells = cell_of(1.0), cell_of(1.0)
    for cell, tpots in zip(cells, ((1.0, 2.0, 4.0), (0.8, 1.0, 3.2)), strict=True):
        cell.samples = [Sample(1.0, 0.2, tpot) for tpot in tpots]
    assert paired_medians(cells) == pytest.approx([2.0, 2.0 * 0.8])


def test_what_the_cache_holds_is_of_one_machine_and_engine(
    measured: list[Any], model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = config_of(model)
    path = cache_file(SHAPE, "vllm", config)
    paths = {path}
    assert path != cache_file(SHAPE, "transformers", config)
    assert path != cache_file(replace(SHAPE, dtype="bfloat16"), "vllm", config)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        for name in ("A100", "H100"):  # two in one machine, of which each may be timed
            patch.setattr(torch.cuda, "get_device_name", lambda name=name: name)
            paths.add(cache_file(SHAPE, "vllm", config))
    assert len(paths) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert path != cache_file(SHAPE, "vllm", config)
    kept = cache_file(SHAPE, engine_for(SHAPE), config)
    with_times(config)
    for damaged in ("{", '{"engine": "vllm"}'):
        kept.write_text(damaged)
        with_times(config)
        assert json.loads(kept.read_text())["batch"] == 8
    assert len(measured) == 3
    begun, made = tmp_path / "out", with_times(config)[0]
    begun.with_name("out.partial").mkdir()
    begun.with_name("out.partial").joinpath("compress_config.json").write_text(made.to_json())
    kept.unlink()
    assert with_times(config, begun)[0] == made and len(measured) == 3
    with_times(config_of(model, speedup=1.3), begun)
    assert len(measured) == 4, "of a run with other options nothing is taken"


def test_times_measured_without_threads_are_found_under_torchrun(
    measured: list[Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    made = with_times(config_of(model))[0]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # by torchrun
    assert with_times(config_of(model), measures=False)[0] == made
    with_times(config_of(model))
    assert len(measured) == 2, "one process measures for the threads that it was given"


def test_noise_is_not_kept_and_bad_points_are_refused(
    measured: list[Any], model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="--context 3 is too short"):
        with_times(config_of(model, context=3))
    with pytest.raises(InputError, match="--context 600 exceeds"):
        with_times(config_of(model, context=600))
    with pytest.raises(InputError, match="without torchrun, with --dry-run"):
        with_times(config_of(model), measures=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(model))
    with pytest.raises(InputError, match=r"XDG_CACHE_HOME.* cannot be written in"):
        with_times(config_of(model))
    assert not measured, "before any time is taken"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "timed", lambda *_: [cell_of(each) for each in (1.0, 1.1, 1.1)])
    with pytest.raises(InputError, match="make no price"):
        with_times(config_of(model))
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_models_that_do_not_fit_together_are_timed_one_by_one(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setattr("grasp_deploy.bench.throughput.CHILD", "tests.bench.fake_engine")

    def narrow(models: Any, *others: Any) -> Any:
        if len(models) > 1:
            raise InputError("no room")
        return bench_throughput(models, *others)

    monkeypatch.setattr(module, "bench_throughput", narrow)
    with pytest.raises(InputError, match="make no price"):  # every model takes as long
        with_times(config_of(model))
    turns = [json.loads(line)[0][0] for line in (tmp_path / "log").read_text().splitlines()]
    assert len(turns) == 3 * 6 and len(set(turns)) == 3


def test_the_command_measures_and_a_run_keeps_its_times(
    measured: list[Any], short_config: CompressConfig, tmp_path: Path
) -> None:
    output, text = tmp_path / "out", short_config.calibration
    words: tuple[str | Path, ...] = ("compress", short_config.model, "-o", output, *AT)
    words += ("--method", "progressive", "--set", "rounds=1", "--set", "scale-epochs=0")
    words += ("--speedup", "1.2")
    words += ("--calibration-sequences", "8", "--sequence-length", "64")
    words += ("--calibration", text[0], "--calibration", text[1])
    time = document(*words, "--json")["time"]
    assert (time["batch"], time["context"]) == (8, 64)
    assert time["predicted_seconds"] <= time["asked_seconds"] == 0.01 / 1.2
    stored = json.loads((output / "compress_config.json").read_text())
    assert stored["times"]["dense_seconds"] == 0.01
    for path in (tmp_path / "cache").rglob("*.json"):
        path.unlink()
    again = grasp_deploy(*words, "--resume")
    assert again.code == 0 and "those of this run" in again.stderr and len(measured) == 1
    assert_refused(grasp_deploy(*words[:2], *AT, "--speedup", "9", "-o", "x"), "beyond reach")
    assert len(measured) == 2 and not Path("x").exists()
    nameless = grasp_deploy(*words[:2], *AT, "--speedup", "1.2", "-o", ".", "--resume")
    assert_refused(nameless, "has no name of its own")
    config = output / "compress_config.json"
    assert grasp_deploy(*words[:2], "--config", config, "--dry-run").code == 0
    assert len(measured) == 2, "times of a file are another machine's, those of the cache are used"
