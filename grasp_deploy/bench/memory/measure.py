"""The memory of a prefill, measured in a child of its own for each cell of a bench."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import convert

from grasp_deploy.bench.memory.record import Sample
from grasp_deploy.engine.child import child

CHILD = "grasp_deploy.bench.memory.child"
# Resident memory must follow the tensors that are alive. So the C library takes each from the
# kernel and returns it at once (by default it would keep freed memory), and threads share one heap.
ALLOCATOR_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(64 * 2**10),
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_TOP_PAD_": "0",
    "MALLOC_ARENA_MAX": "1",
}


def prefill_memory(
    path: Path,
    *,
    batch: int,
    prompt_tokens: int,
    random_weights: bool = False,
    device: str = "cpu",
    dtype: str = "auto",
    seed: int = 0,
    repetitions: int = 1,
    module: str = CHILD,
    timeout_seconds: float = 1800.0,
) -> list[Sample]:
    """Measure prefills of random prompts, one sample for each repetition.

    `path` is a checked model folder, or with random weights a config.json. `module` is what the
    child runs. Raises InputError if the device is too small, ChildError if the child fails.
    """
    request = {
        "path": str(path),
        "random_weights": random_weights,
        "device": device,
        "dtype": dtype,
        "seed": seed,
        "batch": batch,
        "prompt_tokens": prompt_tokens,
        "repetitions": repetitions,
    }
    environment = {**os.environ, **ALLOCATOR_SETTINGS}
    with child(
        module, environment, name="the memory child", timeout_seconds=timeout_seconds
    ) as ask:
        return convert(ask(request)["samples"], list[Sample])
