"""Tasks on a vLLM engine, through lm-eval's own model class for it.

lm-eval drives vLLM's `LLM`, which must not share a process with anything else; so all of lm-eval
runs in the child, and what comes back are the cells.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grasp_deploy.checkpoint.footprint import Load, kv_bytes
from grasp_deploy.checkpoint.limits import BLOCK_TOKENS, installed_platform
from grasp_deploy.engine.child import answer_requests, child
from grasp_deploy.engine.flags import FORMAT
from grasp_deploy.engine.vllm_process import answer_to_its_name, vllm_child_environment
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.evaluate.settings import TaskSettings
from grasp_deploy.evaluate.tasks.harness import load_tasks, run_task, silent
from grasp_deploy.files.progress import OnProgress, step_counter

PATIENCE_SECONDS = 24 * 3600.0  # MMLU on a large model
CPU_SEQUENCES = 4  # full ones that the KV cache holds; more wait
GPU_SHARE = 0.8  # the rest is for log-probabilities of whole prompts, which vLLM does not plan for


def vllm_cells(
    model: BenchModel, settings: TaskSettings, on_progress: OnProgress
) -> Iterator[dict[str, Any]]:
    """Start vLLM on a model and yield the cells of each task; `on_progress` is called after each.

    Raises InputError for tasks that cannot be loaded and for models that vLLM refuses, ChildError
    if it fails.
    """
    environment = vllm_child_environment()
    environment.pop("TQDM_DISABLE", None)  # vLLM divides by the time that its bar has seen
    with child(
        __name__, environment, name=f"vLLM with {model.name}", timeout_seconds=PATIENCE_SECONDS
    ) as ask:
        advance = step_counter(on_progress, f"starting vLLM, {model.name}", 1)
        files = [str(path) for path in settings.task_files]
        engine = engine_arguments(model, settings)
        names = ask({"engine": engine, "names": settings.tasks, "files": files})["names"]
        advance()
        advance = step_counter(on_progress, f"tasks, {model.name}", len(names))
        drawn = {key: getattr(settings, key) for key in ("limit", "num_fewshot", "seed")}
        for name in names:
            yield from ask({"name": name, "settings": drawn})["cells"]
            advance()


def engine_arguments(model: BenchModel, settings: TaskSettings) -> dict[str, Any]:
    """Arguments that lm-eval's class passes on to vLLM's `LLM`."""
    platform, max_tokens = installed_platform(), settings.max_tokens
    assert max_tokens is not None, "filled in by the checks"
    shape = model.shape
    if settings.dtype != "auto":
        shape = replace(shape, dtype=settings.dtype)
    arguments: dict[str, Any] = {
        **FORMAT,
        "pretrained": str(model.path),
        "dtype": shape.dtype,
        "batch_size": "auto",  # of lm-eval: it hands over all requests, and vLLM schedules
        "max_model_len": max_tokens,
        "enforce_eager": settings.enforce_eager,
        "disable_log_stats": True,
    }
    if settings.batch_size is not None:
        arguments["max_num_seqs"] = settings.batch_size
    if platform == "cpu":
        load = Load(CPU_SEQUENCES, max_tokens, block_tokens=BLOCK_TOKENS[platform])
        pool_bytes = kv_bytes(shape, load)
        return {**arguments, "kv_cache_memory_bytes": pool_bytes}
    return {**arguments, "gpu_memory_utilization": GPU_SHARE}


def answer(request: dict[str, Any], held: dict[str, Any]) -> dict[str, Any]:
    """Answer in the child: load the tasks and the engine and keep them, or run a task by name."""
    if "engine" in request:
        held |= _load(**request)
        return {"names": list(held["tasks"])}
    name = request["name"]
    settings = TaskSettings(**request["settings"])
    return {"cells": run_task(held["lm"], name, held["tasks"][name], settings)}


def _load(engine: dict[str, Any], names: list[str], files: list[str]) -> dict[str, Any]:
    tasks = load_tasks(names, [Path(path) for path in files])  # first: it is quick to fail
    import torch

    try:
        with silent():
            from lm_eval.models.vllm_causallms import VLLM

            return {"tasks": tasks, "lm": VLLM(**engine)}
    except (ValueError, torch.OutOfMemoryError) as error:
        raise InputError(f"vLLM cannot start: {' '.join(str(error).split())}") from error


if __name__ == "__main__":
    kept: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        answer_to_its_name(Path(folder))
        answer_requests(lambda request: answer(request, kept))
