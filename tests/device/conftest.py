"""The stand-in device, which the package's commands take as they would take `cuda`, and `cuda`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
import torch.optim.adam as adam
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.device.standin import install

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.fixture(params=["standin", pytest.param("cuda", marks=[pytest.mark.gpu, GPU])])
def device(request: pytest.FixtureRequest) -> str:
    """Name of a device that is not the CPU."""
    name: str = request.param
    return request.getfixturevalue(name) if name == "standin" else name


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of the device; CPU and device then run the same kernels in the same order.

    Two choices of PyTorch's depend on the device and round otherwise: attention's kernel, and that
    AdamW takes all tensors at once.
    """
    name = install()
    for module in [m for n, m in sys.modules.items() if n.startswith("grasp_deploy.")]:
        if "resolve_device" in vars(module):
            monkeypatch.setattr(module, "resolve_device", torch.device)
    one_by_one = lambda *_, **__: (False, False)  # noqa: E731
    monkeypatch.setattr(adam, "_default_to_fused_or_foreach", one_by_one)
    with sdpa_kernel(SDPBackend.MATH):
        yield name
