"""What a sample is made of, whichever engine ran the batch."""

from __future__ import annotations

import pytest

from grasp_deploy.bench.throughput import timing as throughput
from grasp_deploy.bench.throughput.timing import (
    LoadedModel,
    Prompts,
    Timing,
    measure,
    quiet_environment,
    random_prompts,
    throughput_answers,
)


def staggered(prompts: Prompts, new_tokens: int) -> Timing:
    """Request i has its first token after i + 1 seconds, then one every half a second."""
    first = [1.0 + i for i in range(len(prompts))]
    last = [start + 0.5 * (new_tokens - 1) for start in first]
    return Timing(max(last), first, last)


MODEL = LoadedModel(staggered, vocab_size=50, gpu_uuid=None)


def test_a_sample_has_means_over_the_requests() -> None:
    sample = measure(MODEL, batch=3, prompt_tokens=5, new_tokens=5, seed=0)
    assert sample == {"seconds": 5.0, "ttft_seconds": 2.0, "tpot_seconds": 0.5, "joules": None}


def test_one_new_token_has_no_time_between_tokens() -> None:
    assert measure(MODEL, batch=1, prompt_tokens=5, new_tokens=1, seed=0)["tpot_seconds"] is None


def test_energy_is_what_the_counter_moved_by(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([100.0, 107.5])
    monkeypatch.setattr(throughput, "read_joules", lambda uuid: next(readings))
    sample = measure(MODEL, batch=1, prompt_tokens=5, new_tokens=2, seed=0)
    assert sample["joules"] == 7.5


def test_prompts_are_random_and_the_same_for_the_same_seed() -> None:
    prompts = random_prompts(3, 40, 50, seed=7)
    assert prompts == random_prompts(3, 40, 50, seed=7)
    assert prompts != random_prompts(3, 40, 50, seed=8)
    assert len({tuple(prompt) for prompt in prompts}) == 3
    assert all(len(prompt) == 40 and set(prompt) <= set(range(50)) for prompt in prompts)


def test_a_child_loads_once_and_measures_often() -> None:
    loads = []

    def load(model: str) -> LoadedModel:
        loads.append(model)
        return MODEL

    answer = throughput_answers(load, lambda: 123)
    assert answer({"do": "free_memory"}) == {"free_memory_bytes": 123}
    assert answer({"do": "load", "model": "m"}) == {}
    request = {"do": "measure", "batch": 1, "prompt_tokens": 2, "new_tokens": 3, "seed": 0}
    assert answer(request) == answer(request)
    assert loads == ["m"] and request["do"] == "measure"


def test_idle_threads_are_not_told_to_spin() -> None:
    assert quiet_environment({"A": "1"}) == {"A": "1", "KMP_BLOCKTIME": "5"}
    assert quiet_environment({"OMP_WAIT_POLICY": "active", "KMP_BLOCKTIME": "0"}) == {
        "KMP_BLOCKTIME": "0"
    }
    assert quiet_environment({"OMP_WAIT_POLICY": "PASSIVE"})["OMP_WAIT_POLICY"] == "PASSIVE"
