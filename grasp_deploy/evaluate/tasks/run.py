"""Accuracy on tasks, models side by side, with either engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import torch

from grasp_deploy.checkpoint.limits import check_vllm_runs
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer, resolve_device, wanted_dtype
from grasp_deploy.checkpoint.read.source import fewest_positions, file_hashes
from grasp_deploy.engine.vllm_process import vllm_platform
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, check_positions
from grasp_deploy.evaluate.settings import TaskSettings
from grasp_deploy.evaluate.tasks.accuracy import AVERAGE_RULE, RULE, average
from grasp_deploy.evaluate.tasks.harness import (
    Loaded,
    check_names,
    run_task,
    transformers_lm,
    tried_tasks,
)
from grasp_deploy.evaluate.tasks.local_items import local_task
from grasp_deploy.evaluate.tasks.vllm import vllm_cells
from grasp_deploy.files.progress import OnProgress, counts_of, ignore_progress
from grasp_deploy.files.record import new_record

MAX_TOKENS = 4096  # few-shot prompts are shorter; a cache for all positions may not fit in memory
BATCH_SIZE = 8


def bench_tasks(
    models: Sequence[BenchModel],
    settings: TaskSettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
    on_record: OnProgress = ignore_progress,
) -> dict[str, Any]:
    """Run every task on every model, and return a record as in `accuracy.TasksRecord`.

    The first model is the baseline. After each `on_record` gets the record so far. Beside cells it
    has `averages`, one row a model. Raises InputError for tasks, models or settings that cannot be
    used, and ChildError if vLLM fails.
    """
    check_names(settings.tasks, settings.task_files)
    for path in settings.task_files:
        local_task(path, settings.num_fewshot)  # refused before an engine is started
    settings = _checked(models, settings)
    tasks = tried_tasks(settings, [load_tokenizer(model.path) for model in models])
    measure: Callable[..., Iterator[dict[str, Any]]] = vllm_cells
    if settings.engine == "transformers":
        measure = partial(transformers_cells, tasks)
    files = [str(path) for path in settings.task_files]
    told = {**asdict(settings), "task_files": files, "accuracy": RULE, "average": AVERAGE_RULE}
    record = new_record("tasks", command, told, models=[], cells=[], averages=[])
    record["versions"]["lm_eval"] = version("lm_eval")
    for model in models:
        cells = list(measure(model, settings, on_progress))
        # A model card finds its models by the hashes.
        record["models"].append({**model.as_dict(), "weight_hashes": file_hashes(model.path)})
        record["cells"] += [{"model": model.name, **cell} for cell in cells]
        record["averages"].append({"model": model.name, **average(cells)})
        on_record(record)
    return record


def transformers_cells(
    tasks: Mapping[str, Loaded], model: BenchModel, settings: TaskSettings, on_progress: OnProgress
) -> Iterator[dict[str, Any]]:
    """Load a model with transformers and yield the cells of each task."""
    assert settings.max_tokens is not None, "filled in by the checks"
    weights = load(model.path, device=settings.device, dtype=settings.dtype)
    batch_size = settings.batch_size or BATCH_SIZE
    lm = transformers_lm(weights, load_tokenizer(model.path), batch_size, settings.max_tokens)
    for name, loaded in tasks.items():
        told = counts_of(f"{name}, {model.name}", on_progress)
        yield from run_task(lm, name, loaded, settings, told)


def _checked(models: Sequence[BenchModel], settings: TaskSettings) -> TaskSettings:
    """The settings with defaults filled in; on a CPU, one dtype for both engines and all models.

    Quantised models in vLLM are the exception: its kernels for them are not made for float32.
    """
    for model in models:
        tokens, most = load_tokenizer(model.path).vocab_size, model.shape.vocab_size
        if tokens > most:
            raise InputError(
                f"the tokenizer of {model.name} has {tokens} tokens and the model only {most}: use "
                "the tokenizer that belongs to the model"
            )
    if settings.engine == "vllm":
        platform = vllm_platform(settings.device, settings.enforce_eager)
        for model in models:
            check_vllm_runs(model.shape, platform)
        device: str = platform
    else:
        if settings.enforce_eager:
            raise InputError("--enforce-eager is an option of vLLM: leave it out")
        device = str(resolve_device(settings.device))
    dtype = settings.dtype
    quantised = settings.engine == "vllm" and any(model.shape.quantization for model in models)
    if dtype == "auto" and device == "cpu" and not quantised:
        cpu = torch.device(device)
        own = {wanted_dtype(model.shape.dtype, cpu, dtype) for model in models}
        dtype = "bfloat16" if own == {torch.bfloat16} else "float32"
    check_positions(models, settings.max_tokens, "--max-tokens")
    # The same for all models, or the items would differ.
    longest = settings.max_tokens or fewest_positions((m.path for m in models), MAX_TOKENS)
    return replace(settings, device=device, dtype=dtype, max_tokens=longest)
