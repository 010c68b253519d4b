"""The dtype to compute in: the weights' own, on a CPU only where it multiplies that faster."""

from __future__ import annotations

import pytest
import torch

from grasp_deploy.checkpoint.read import loading
from grasp_deploy.checkpoint.read.loading import is_bfloat16_fast, wanted_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_cpu_takes_bfloat16_where_it_is_fast(
    is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "is_bfloat16_fast", lambda: is_fast)
    expected = torch.bfloat16 if is_fast else torch.float32
    assert wanted_dtype("bfloat16", CPU, "auto") == expected
    assert wanted_dtype("bfloat16", GPU, "auto") == torch.bfloat16
    assert wanted_dtype("float16", CPU, "auto") == torch.float32
    assert wanted_dtype("bfloat16", CPU, "float16") == torch.float16


def test_the_rate_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for ratio in (2.0, 0.5):
        seconds = {torch.float32: ratio, torch.bfloat16: 1.0}
        monkeypatch.setattr(loading, "repeat", lambda f, s=seconds, **_: [s[f.args[0].dtype]])
        is_bfloat16_fast.cache_clear()
        assert is_bfloat16_fast() == (ratio > 1)
    is_bfloat16_fast.cache_clear()
