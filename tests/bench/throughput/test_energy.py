"""The driver's energy counter, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pynvml
import pytest
import torch

from grasp_deploy.bench.throughput import energy
from grasp_deploy.bench.throughput.energy import cuda_uuid, joules_between, read_joules


@pytest.fixture(autouse=True)
def no_handles_kept() -> Iterator[None]:
    energy._handle.cache_clear()
    yield
    energy._handle.cache_clear()


def test_a_cpu_has_no_counter() -> None:
    assert read_joules(None) is None
    assert joules_between(None, None) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_neither_has_a_machine_without_a_driver() -> None:
    assert read_joules("GPU-0") is None


def test_the_counter_is_in_millijoules_of_the_named_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"GPU-a": iter([5_000, 7_250]), "GPU-b": iter([1])}
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: counters[uuid])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", next)
    before, after = read_joules("GPU-a"), read_joules("GPU-a")
    assert (before, after) == (5.0, 7.25)
    assert joules_between(before, after) == 2.25
    assert read_joules("GPU-b") == 0.001


def test_a_gpu_without_a_counter_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(handle: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", unsupported)
    assert read_joules("GPU-a") is None
    assert joules_between(1.0, read_joules("GPU-a")) is None


def test_a_gpu_is_named_as_the_driver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {1: SimpleNamespace(uuid="1234-abcd")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    assert cuda_uuid(1) == "GPU-1234-abcd"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_busy_gpu_uses_energy() -> None:
    uuid = cuda_uuid(0)
    before = read_joules(uuid)
    assert before is not None
    matrix = torch.randn(8192, 8192, device="cuda")
    for _ in range(50):
        matrix = (matrix @ matrix).clamp(-1, 1)
    torch.cuda.synchronize()
    after = read_joules(uuid)
    assert after is not None and after > before
