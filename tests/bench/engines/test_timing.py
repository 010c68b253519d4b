"""What a sample is made of, whichever engine ran the batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from grasp_deploy.bench.engines import timing


def staggered(prompts: timing.Prompts, new_tokens: int) -> timing.Timing:
    """Request i has its first token after i + 1 seconds, then one every half a second."""
    first = [1.0 + i for i in range(len(prompts))]
    return first, [start + 0.5 * (new_tokens - 1) for start in first]


MODEL = timing.LoadedModel(staggered, vocab_size=50, gpu=None)


def test_a_sample_has_means_over_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = timing.measure(MODEL, batch=3, prompt_tokens=5, new_tokens=5, seed=0)
    assert sample == {"seconds": 5.0, "ttft_seconds": 2.0, "tpot_seconds": 0.5, "joules": None}
    readings = iter([100.0, 107.5])
    monkeypatch.setattr(timing, "read_joules", lambda _: next(readings))
    sample = timing.measure(MODEL, batch=1, prompt_tokens=5, new_tokens=1, seed=0)
    assert (sample["tpot_seconds"], sample["joules"]) == (None, 7.5)


def test_the_counter_is_in_millijoules_of_the_named_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def counter(uuid: str) -> int:
        if uuid != "GPU-b":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 7_250

    properties: list[Any] = [SimpleNamespace(uuid="a"), SimpleNamespace(uuid="b")]
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", counter)
    assert timing.read_joules(1) == 7.25
    assert timing.read_joules(0) is None, "a GPU without a counter"


def test_prompts_are_random_and_the_same_for_the_same_seed() -> None:
    prompts, again, other = (timing.random_prompts(3, 40, 50, seed) for seed in (7, 7, 8))
    assert prompts == again != other
    assert len({tuple(prompt) for prompt in prompts}) == 3
    assert all(len(prompt) == 40 and set(prompt) <= set(range(50)) for prompt in prompts)


def test_a_child_loads_once_and_measures_often() -> None:
    loads = []

    def load(model: str) -> timing.LoadedModel:
        loads.append(model)
        return MODEL

    answer = timing.throughput_answers(load)
    assert answer({"model": "m"}) == {}
    request = {"batch": 1, "prompt_tokens": 2, "new_tokens": 3, "seed": 0}
    assert answer(request) == answer(request) == timing.measure(MODEL, 1, 2, 3, 0)
    assert loads == ["m"]
