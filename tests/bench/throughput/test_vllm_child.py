"""Batches through a real vLLM engine: times that say what they claim, and little beside vLLM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grasp_deploy.bench.throughput.vllm_child import vllm_load_request
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.engine.child import Ask, child
from grasp_deploy.engine.vllm_process import vllm_child_environment
from grasp_deploy.errors import InputError
from tests.bench.throughput.planted import (
    BATCH,
    NEW_TOKENS,
    PROMPT_TOKENS,
    ROOT,
    assert_idle_afterwards,
    assert_sleeps_show,
    sample,
)
from tests.retry_timing import undisturbed
from tests.tiny import pruned_config, tiny_config

pytestmark = pytest.mark.vllm
KV_BYTES = 2**22


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the config.json of a pruned model whose layers differ."""
    folder = tmp_path_factory.mktemp("model")
    config = pruned_config(tiny_config("llama"), [(2, 96), (1, 64), (1, 32)])
    config.architectures = ["GraspLlamaForCausalLM"]
    config.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def ask(folder: Path) -> Iterator[Ask]:
    """A child with an engine in it, its weights random."""
    environment = {**vllm_child_environment(), "PYTHONPATH": str(ROOT)}
    with child("tests.bench.throughput.planted_vllm", environment, name="vLLM") as ask:
        assert ask({"do": "free_memory"}) == {"free_memory_bytes": None}
        ask(load_request(folder))
        yield ask


def load_request(folder: Path, **changes: object) -> dict[str, object]:
    arguments = {
        "dtype": "bfloat16",
        "random_weights": True,
        "kv_cache_bytes": KV_BYTES,
        "largest_batch": BATCH,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "enforce_eager": True,
    }
    return vllm_load_request(str(folder), **{**arguments, **changes})  # type: ignore[arg-type]


def test_planted_sleeps_show_where_they_were_planted(ask: Ask) -> None:
    sample(ask)  # the first is slow
    undisturbed(lambda: assert_sleeps_show(ask))


def test_the_cache_has_the_bytes_that_were_asked_for_and_remembers_no_prefix(
    ask: Ask, folder: Path
) -> None:
    engine = ask({"do": "look"})
    per_token = model_shape(read_config(folder)).kv_bytes_per_token(2)
    tokens = engine["blocks"] * engine["block_tokens"]
    assert 0 <= KV_BYTES // per_token - tokens < engine["block_tokens"]
    assert engine["prefix_caching"] is False


def test_an_idle_engine_leaves_the_processor_to_the_others(ask: Ask) -> None:
    undisturbed(lambda: assert_idle_afterwards(ask))


def test_what_is_timed_is_vllm_and_little_else(ask: Ask) -> None:
    undisturbed(lambda: assert_little_else_is_timed(ask))


def assert_little_else_is_timed(ask: Ask) -> None:
    """Steps of 50 ms, short for a model that is worth measuring; what is left is ours.

    A quiet machine shows 0.01 % and 0.04 %; the limits leave room for a busy one.
    """
    ask({"do": "plant", "planted": {"prefill_seconds": 0.05, "decode_seconds": 0.05}})
    parent = time.process_time()
    measured = sample(ask)
    parent = time.process_time() - parent
    outside = measured["seconds"] - ask({"do": "look"})["inside_seconds"]
    assert measured["seconds"] > NEW_TOKENS * 0.05
    assert 0 <= outside < 0.05 * measured["seconds"]
    assert parent < 0.05 * measured["seconds"], "the process that asks sleeps meanwhile"


def test_what_vllm_refuses_is_told_in_one_line(ask: Ask, folder: Path) -> None:
    with pytest.raises(InputError, match=r"^vLLM cannot start: .*'float32'") as caught:
        ask(load_request(folder, dtype="int3"))
    assert "\n" not in str(caught.value)
