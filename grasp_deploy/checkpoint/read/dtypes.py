"""The dtype to compute in, by how fast this machine multiplies in it."""

from __future__ import annotations

import time
from functools import cache

import torch

FASTER = 1.25  # times float32's rate, for a CPU to compute in bfloat16
BLOCK = 768  # rows and columns of a product that takes some milliseconds on one core


def wanted_dtype(stated: str, device: torch.device, dtype: str) -> torch.dtype:
    """The dtype that `dtype` asks for; "auto" is that of the weights, as `stated`.

    On a CPU it is float32 instead, unless that is bfloat16 and this machine multiplies it faster.
    """
    if dtype != "auto":
        wanted: torch.dtype = getattr(torch, dtype)
        return wanted
    own: torch.dtype = getattr(torch, stated)
    is_fast = device.type != "cpu" or (own == torch.bfloat16 and is_bfloat16_fast())
    return own if is_fast else torch.float32


@cache
def is_bfloat16_fast() -> bool:
    """True if the CPU multiplies bfloat16 clearly faster than float32; the best of some turns."""
    matrices = [torch.ones(BLOCK, BLOCK, dtype=each) for each in (torch.float32, torch.bfloat16)]
    best = [float("inf")] * 2
    for _ in range(6):  # the first product also starts the libraries
        for place, matrix in enumerate(matrices):
            best[place] = min(best[place], seconds_of_product(matrix))
    return best[0] > FASTER * best[1]


def seconds_of_product(matrix: torch.Tensor) -> float:
    """Seconds that a square matrix takes to be multiplied by itself."""
    began = time.perf_counter()
    float((matrix @ matrix)[0, 0])  # waits for a GPU
    return time.perf_counter() - began
