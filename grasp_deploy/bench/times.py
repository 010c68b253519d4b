"""The decode times that price a budget in time: measured once, then kept in the user's cache.

Three models with random weights take turns: the dense one, one with about half of the FFN channels
in every layer, and one with about half of the KV groups.
"""

import hashlib
import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from grasp_deploy.bench.throughput import Cell, Engine, ThroughputSettings, bench_throughput
from grasp_deploy.checkpoint.format.shapes import ModelShape, read_config
from grasp_deploy.checkpoint.limits import check_vllm_runs, refuse_experts
from grasp_deploy.checkpoint.plan import shape_keeping
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.checkpoint.read.validate import config_and_shape, refuse_quantised
from grasp_deploy.compression.budget_options import refuse_pruned
from grasp_deploy.compression.resume import CONFIG_FILE
from grasp_deploy.compression.synthesize import write_shape
from grasp_deploy.compression.time_budget import milliseconds, time_budget
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.compress_options import Times
from grasp_deploy.engine.vllm_process import vllm_platform
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, check_positions
from grasp_deploy.files.json_files import read_json, typed, write_json
from grasp_deploy.files.outputs import check_file_place
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.files.record import machine, versions

NEW_TOKENS, REPETITIONS = 64, 5
TILE = 64  # FFN channels that kernels take at once


def with_times(
    config: CompressConfig,
    begun: Path | None = None,
    on_progress: OnProgress = ignore_progress,
    *,
    measures: bool = True,
) -> tuple[CompressConfig, str]:
    """Fill in the times of a config that budgets time; also return a line that states them.

    They come from a run with the same options that was `begun` in this folder, else from the cache,
    else from measuring now. InputError if that fails, or is needed and `measures` is false.
    """
    if (known := _of_run(begun, config)) is not None:
        return _told(config, known, "those of this run")
    stated = resolve_config(config.model, config.revision)
    shape = config_and_shape(stated)[1]
    refuse_quantised(shape)
    refuse_pruned(config, shape)
    refuse_experts(shape, "a budget in time", hybrid=True)
    engine = engine_for(shape)
    path = cache_file(shape, engine, config)
    # torchrun sets OMP_NUM_THREADS to 1 where it is unset; times measured without it are as good
    for kept in [path] if measures else [path, cache_file(shape, engine, config, threads=False)]:
        with suppress(InputError):  # absent, damaged, or without a price
            return _told(config, typed(read_json(kept, ""), Times, kept, ""), f"kept in {kept}")
    if not measures:
        raise InputError(
            "no times of this model are kept on this machine, and one process alone measures them: "
            "give the command here once without torchrun, with --dry-run"
        )
    check_file_place(path, "below $XDG_CACHE_HOME, by default ~/.cache,")
    known = _measured(BenchModel("dense", stated, shape, True), engine, config, on_progress)
    made = _told(config, known, f"measured now, kept in {path}")
    write_json(path, asdict(known))
    return made


def _told(config: CompressConfig, times: Times, source: str) -> tuple[CompressConfig, str]:
    """The config with these times, and a line that states them; InputError if no price follows."""
    config = replace(config, times=times)
    time_budget(config)
    seconds = times.dense_seconds, times.fewer_channels_seconds, times.fewer_groups_seconds
    dense, channels, groups = map(milliseconds, seconds)
    return config, (
        f"a decode step at batch {times.batch}, context {times.context} takes {dense}; {channels} "
        f"with {times.channels_share:.0%} of the FFN channels, {groups} with "
        f"{times.groups_share:.0%} of the KV groups ({times.engine}, {times.machine}, "
        f"{times.measured_on}; {source})"
    )


def engine_for(shape: ModelShape) -> Engine:
    """vLLM where one is installed that can run the model, else transformers."""
    try:
        check_vllm_runs(shape, vllm_platform("auto", enforce_eager=False))
    except InputError:
        return "transformers"
    return "vllm"


def cache_file(
    shape: ModelShape, engine: Engine, config: CompressConfig, *, threads: bool = True
) -> Path:
    """The cache file for times of one shape, engine, batch and context on this machine.

    Without `threads`: the file that is written where OMP_NUM_THREADS is unset.
    """
    release = [versions().get(name) for name in (engine, f"{engine}-cpu", "torch")]
    here = {name: value for name, value in _here().items() if threads or name != "threads"}
    key = repr((shape, engine, release, here, config.batch, config.context))
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return caches / "grasp-deploy" / "times" / f"{name}.json"


def _here() -> dict[str, Any]:
    """This machine, with the GPU that is timed in the place of all that it has."""
    found = machine()
    if torch.cuda.is_available():  # of several GPUs the one that is timed
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _of_run(begun: Path | None, config: CompressConfig) -> Times | None:
    """The times of a run with these options, unfinished or finished; None if there is none."""
    if begun is None or not begun.name:  # the latter is refused as an output later
        return None
    for folder in (begun.with_name(f"{begun.name}.partial"), begun):
        with suppress(InputError):
            stored = read_json(folder / CONFIG_FILE, "")
            times = stored.pop("times", None)
            if times and stored | {"times": None} == config.as_dict() | {"times": None}:
                return typed(times, Times, folder, "")
    return None


def _measured(
    dense: BenchModel, engine: Engine, config: CompressConfig, on_progress: OnProgress
) -> Times:
    """Time the three models; InputError for what cannot be measured."""
    settings, layer = throughput_settings(dense, engine, config), dense.shape.layers[0]
    channels, groups = layer.intermediate_size, layer.num_key_value_heads
    fewer_channels = channels // 2 // TILE * TILE or max(1, channels // 2)
    fewer_groups = max(1, groups // 2)
    shapes = [
        shape_keeping(dense.shape, [pair] * len(dense.shape.layers))
        for pair in ((fewer_channels, groups), (channels, fewer_groups))
    ]
    cells, here = timed(dense, shapes, settings, on_progress), _here()
    seconds = paired_medians(cells)
    return Times(
        machine=here.get("gpu", here["processor"]),
        engine=engine,
        measured_on=datetime.now(UTC).date().isoformat(),
        batch=settings.batches[0],
        context=settings.tokens,
        channels_share=fewer_channels / channels,
        groups_share=fewer_groups / groups,
        dense_seconds=seconds[0],
        fewer_channels_seconds=seconds[1],
        fewer_groups_seconds=seconds[2],
    )


def throughput_settings(
    dense: BenchModel, engine: Engine, config: CompressConfig
) -> ThroughputSettings:
    """Bench settings for the config's batch and context; InputError if the context does not fit."""
    assert config.batch is not None and config.context is not None, "checked with the config"
    check_positions([dense], config.context, "--context")
    new_tokens = min(NEW_TOKENS, config.context // 2)
    if new_tokens < 2:
        raise InputError(f"--context {config.context} is too short to be timed: give 4 or more")
    return ThroughputSettings(
        engine=engine,
        batches=(config.batch,),
        prompt_tokens=config.context - new_tokens,
        new_tokens=new_tokens,
        repetitions=REPETITIONS,
    )


def timed(
    dense: BenchModel,
    shapes: Sequence[ModelShape],
    settings: ThroughputSettings,
    on_progress: OnProgress = ignore_progress,
) -> list[Cell]:
    """Time the dense model, and `shapes` with random weights; InputError where one fails.

    They take turns, so that a machine that is busy for a while slows all of them; one after the
    other where they do not fit in memory together.
    """
    config, models = read_config(dense.path), [dense]
    with TemporaryDirectory() as folder:
        for number, shape in enumerate(shapes, start=1):
            path = Path(folder) / f"shape-{number}"
            write_shape(config, shape, path)
            models.append(BenchModel(path.name, path, shape, random_weights=True))
        with suppress(InputError):
            cells = bench_throughput(models, settings, [], on_progress).cells
            if all(cell.samples for cell in cells):
                return cells
        records = [bench_throughput([model], settings, [], on_progress) for model in models]
    return [record.cells[0] for record in records]


def paired_medians(cells: Sequence[Cell]) -> list[float]:
    """Median TPOT of the first model; for others, that times their median ratio to it by round."""
    first, *others = (cell.seconds("tpot") for cell in cells)
    dense = statistics.median(first)
    ratios = ([b / a for a, b in zip(first, other, strict=True)] for other in others)
    return [dense, *(dense * statistics.median(ratio) for ratio in ratios)]
