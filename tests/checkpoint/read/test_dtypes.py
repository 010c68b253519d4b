"""The dtype to compute in: the weights' own, on a CPU only where it multiplies that faster."""

from typing import Any

import pytest
import torch

from grasp_deploy.checkpoint import cpu
from grasp_deploy.checkpoint.cpu import bfloat16_rate
from grasp_deploy.checkpoint.read import loading
from grasp_deploy.checkpoint.read.loading import wanted_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_cpu_takes_bfloat16_where_it_is_fast(
    is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "bfloat16_rate", lambda: 1.5 if is_fast else 1.0)
    expected = torch.bfloat16 if is_fast else torch.float32
    assert wanted_dtype("bfloat16", CPU, "auto") == expected
    assert wanted_dtype("bfloat16", GPU, "auto") == torch.bfloat16
    assert wanted_dtype("float16", CPU, "auto") == torch.float32
    assert wanted_dtype("bfloat16", CPU, "float16") == torch.float16


@pytest.mark.parametrize(("seconds", "turns"), [(0.1, 6), (0.8, 1)])
def test_one_product_tells_of_an_imitated_bfloat16(
    seconds: float, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def repeat(product: Any, number: int, repeat: int) -> list[float]:
        is_half = product.args[0].dtype == torch.bfloat16
        taken.extend([is_half] * repeat)
        return [seconds if is_half else 0.004] * repeat

    monkeypatch.setattr(cpu, "repeat", repeat)
    bfloat16_rate.cache_clear()
    assert bfloat16_rate() == 0.004 / seconds
    assert sum(taken) == turns
    bfloat16_rate.cache_clear()
