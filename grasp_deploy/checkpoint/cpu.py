"""What the processor of this machine can do, asked and measured."""

from __future__ import annotations

from functools import cache, partial
from timeit import repeat

import torch

BLOCK = 768  # rows and columns of a product that takes some milliseconds on one core
FASTER = 1.25  # from this rate on a CPU computes in bfloat16
IMITATED = 0.03  # below it a CPU has no such instructions; theirs is near 0.005


@cache
def bfloat16_rate() -> float:
    """The rate of bfloat16 products, in units of float32's; the best of six.

    Where it is imitated one product takes a second, and is enough.
    """
    plain, half = (torch.ones(BLOCK, BLOCK, dtype=each) for each in (torch.float32, torch.bfloat16))
    torch.matmul(half[:1], half[:, :1])  # a warm-up: the first one also sets things up
    fastest, first = _seconds(plain, 6), _seconds(half, 1)
    return fastest / (first if fastest < IMITATED * first else min(first, _seconds(half, 5)))


def _seconds(block: torch.Tensor, turns: int) -> float:
    return min(repeat(partial(torch.matmul, block, block), number=1, repeat=turns))


def has_avx512() -> bool:
    """False for an x86 processor without AVX-512, for which vLLM loads another library."""
    return torch.backends.cpu.get_cpu_capability() != "AVX2"
