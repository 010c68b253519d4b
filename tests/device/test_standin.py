"""The stand-in refuses what an NVIDIA GPU refuses, and lets in what that lets in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.device.standin import noted

CPU = torch.arange(6.0)


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + CPU,
        lambda x: CPU.add_(x),
        lambda x: CPU[0].add_(x[0]),
        lambda x: torch.cat([x, CPU]),
        lambda x: x @ CPU,
        lambda x: torch.where(CPU > 1, x, 0.0),
        lambda x: CPU[x.long()],
        lambda x: x.index_select(0, CPU.long()),
        lambda x: x.index_put_((x.long(),), CPU),
        lambda x: torch.nn.functional.embedding(CPU.long(), x[:, None]),
        lambda x: torch.equal(x, CPU),
        lambda x: x.numpy(),
        lambda x: torch.rand(6, device=x.device, generator=torch.Generator()),
    ],
)
def test_devices_do_not_meet(standin: str, mix: Callable[[Tensor], object]) -> None:
    with pytest.raises((RuntimeError, TypeError), match=r"standin|numpy"):
        mix(CPU.to(standin))


@pytest.mark.parametrize(
    ("use", "waits"),
    [
        (lambda x: x + torch.tensor(1.0), ""),
        (lambda x: x * 2 - x.sum(), ""),
        (lambda x: x.index_put_((x.long(),), torch.tensor(7.0)), ""),
        (lambda x: x.float(), ""),
        (lambda x: x[: len(torch.arange(3, device=x.device))].view(3, 1), ""),
        (lambda x: x[CPU.long()], "index"),
        (lambda x: x[x > 2], "index"),
        (lambda x: x.copy_(CPU), "copy to the device"),
        (lambda x: x.cpu(), "copy to the CPU"),
        (lambda x: x.tolist(), "copy to the CPU"),
        (lambda x: float(x[1]), "number"),
        (lambda x: bool((x > 2).any()), "number"),
        (lambda x: (x > 2).nonzero(), "size"),
    ],
)
def test_what_waits_is_noted(standin: str, use: Callable[[Tensor], object], waits: str) -> None:
    x = CPU.to(standin)
    noted.clear()
    result, expected = use(x), use(CPU.clone())
    assert [key.partition(":")[0] for key in noted] == ([waits] if waits else [])
    if isinstance(result, Tensor) and isinstance(expected, Tensor):
        assert torch.equal(result.cpu(), expected)
    else:
        assert result == expected
