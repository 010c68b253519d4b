"""Energy that a GPU has used, from the counter that its driver keeps.

The counter is of the whole GPU: idle power and other programs count too. It moves every few dozen
milliseconds, so only what takes a second or more is measured well.
"""

from __future__ import annotations

from functools import cache
from typing import Any

MILLI = 1e-3


def cuda_uuid(device_index: int) -> str:
    """UUID of a GPU by PyTorch's number, which changes with the GPUs hidden from the process."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device_index).uuid}"


def read_joules(gpu_uuid: str | None) -> float | None:
    """Joules that this GPU has used since its driver was loaded; None without a counter."""
    handle = _handle(gpu_uuid) if gpu_uuid else None
    if handle is None:
        return None
    import pynvml

    try:
        return MILLI * int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    except pynvml.NVMLError:  # older than Volta, or part of a GPU
        return None


def joules_between(before: float | None, after: float | None) -> float | None:
    """Joules between two readings of the counter; None without a counter."""
    return None if before is None or after is None else after - before


@cache
def _handle(gpu_uuid: str) -> Any | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
    except pynvml.NVMLError:
        return None
