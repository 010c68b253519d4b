"""What the processor of this machine can do, asked and measured."""

import platform
from functools import cache, partial
from timeit import repeat

import torch

BLOCK = 768  # rows and columns of a product that takes some milliseconds on one core
FASTER = 1.25  # from this rate on a CPU computes in bfloat16
IMITATED = 0.1  # below it a CPU has no such instructions: 0.005 to 0.03 were seen there
SLOW_SECONDS = 0.2  # a product that takes longer is not repeated


@cache
def bfloat16_rate() -> float:
    """The rate of bfloat16 products, in units of float32's; the best of six, or one slow one."""
    plain, half = (torch.ones(BLOCK, BLOCK, dtype=each) for each in (torch.float32, torch.bfloat16))
    torch.matmul(half[:1], half[:, :1])  # a warm-up: the first one also sets things up
    fastest, first = _seconds(plain, 6), _seconds(half, 1)
    return fastest / (first if first > SLOW_SECONDS else min(first, _seconds(half, 5)))


def _seconds(block: torch.Tensor, turns: int) -> float:
    return min(repeat(partial(torch.matmul, block, block), number=1, repeat=turns))


def has_avx512() -> bool:
    """False for an x86 processor without AVX-512; vLLM asks the same to choose its library."""
    return platform.machine() != "x86_64" or torch.cpu._is_avx512_supported()
