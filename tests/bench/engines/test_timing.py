"""What a sample is made of, whichever engine ran the batch."""

from __future__ import annotations

from grasp_deploy.bench.engines import timing


def staggered(prompts: timing.Prompts, new_tokens: int) -> timing.Timing:
    """Request i has its first token after i + 1 seconds, then one every half a second."""
    first = [1.0 + i for i in range(len(prompts))]
    return first, [start + 0.5 * (new_tokens - 1) for start in first]


LOADED: timing.Loaded = (staggered, 50)


def test_a_sample_has_means_over_the_requests() -> None:
    sample = timing.measure(LOADED, batch=3, prompt_tokens=5, new_tokens=5, seed=0)
    assert sample == {"seconds": 5.0, "ttft_seconds": 2.0, "tpot_seconds": 0.5}
    sample = timing.measure(LOADED, batch=1, prompt_tokens=5, new_tokens=1, seed=0)
    assert sample["tpot_seconds"] is None


def test_prompts_are_random_and_the_same_for_the_same_seed() -> None:
    prompts, again, other = (timing.random_prompts(3, 40, 50, seed) for seed in (7, 7, 8))
    assert prompts == again != other
    assert len({tuple(prompt) for prompt in prompts}) == 3
    assert all(len(prompt) == 40 and set(prompt) <= set(range(50)) for prompt in prompts)


def test_a_child_loads_once_and_measures_often() -> None:
    loads = []

    def load(model: str) -> timing.Loaded:
        loads.append(model)
        return LOADED

    answer = timing.throughput_answers(load)
    assert answer({"model": "m"}) == {}
    request = {"batch": 1, "prompt_tokens": 2, "new_tokens": 3, "seed": 0}
    assert answer(request) == answer(request) == timing.measure(LOADED, 1, 2, 3, 0)
    assert loads == ["m"]
