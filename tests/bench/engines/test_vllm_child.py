"""Batches through vLLM's engine: what is timed, and what a real engine is started with."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grasp_deploy.bench.engines import vllm_child
from grasp_deploy.bench.engines.request import MODULES, environment_of, load_request
from grasp_deploy.bench.throughput import ThroughputSettings
from grasp_deploy.engine.child import child
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from tests.cli.command import REPOSITORY


class StaggeredEngine:
    """Request i has its first token in step i, and its last three steps later."""

    def __init__(self) -> None:
        self.renderer = SimpleNamespace(render_cmpl=list)
        self.requests: list[int] = []
        self.steps = 0

    def add_request(self, name: str, prompt: Any, params: Any) -> None:
        self.requests.append(int(name))

    def has_unfinished_requests(self) -> bool:
        return self.steps <= max(self.requests) + 3

    def step(self) -> list[Any]:
        now, self.steps = self.steps, self.steps + 1
        return [
            SimpleNamespace(request_id=str(request), finished=now == request + 3)
            for request in self.requests
            if now in (request, request + 3)
        ]


@pytest.mark.vllm
def test_first_and_last_tokens_are_timed_by_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", itertools.count().__next__)
    timing = vllm_child.generate(StaggeredEngine(), [[1, 2], [3, 4]], new_tokens=4)
    assert timing == ([1, 2], [4, 5])


def test_one_step_may_prefill_the_largest_batch(demo_model: Path) -> None:
    (model,) = bench_models([str(demo_model)], random_weights=True)
    settings = ThroughputSettings("vllm", (1, 2), prompt_tokens=24, new_tokens=8)
    engine = load_request(model, model.path, settings)["engine"]
    assert (engine["max_num_seqs"], engine["max_num_batched_tokens"]) == (2, 48)
    assert engine["max_model_len"] == 32
    assert engine["load_format"] == "dummy" and engine["enable_prefix_caching"] is False


@pytest.mark.vllm
def test_what_vllm_refuses_is_told_in_one_line(demo_model: Path) -> None:
    environment = {**environment_of("vllm"), "PYTHONPATH": str(REPOSITORY)}
    with (
        child(MODULES["vllm"], environment, name="vLLM") as ask,
        pytest.raises(InputError, match=r"^vLLM cannot start: .*'float32'") as caught,
    ):
        ask({"engine": {"model": str(demo_model), "dtype": "int3"}})
    assert "\n" not in str(caught.value)
