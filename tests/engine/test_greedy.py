"""Greedy tokens and KV capacity of a real vLLM beside transformers and the prediction."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import cast

import pytest
import torch

from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.engine import vllm_process
from grasp_deploy.engine.greedy import greedy_tokens
from grasp_deploy.errors import ChildError, InputError
from tests.tiny import save_tiny

PROMPTS = [[1, 2, 3, 4], [9] * 20, [200]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    save_tiny("llama", directory)
    return directory


@pytest.mark.vllm
def test_tokens_are_those_of_transformers_and_the_cache_is_as_predicted(model: Path) -> None:
    result = greedy_tokens(model, PROMPTS, 8, kv_cache_bytes=2**23)
    generate = cast(Callable[..., torch.Tensor], save_tiny("llama", model).generate)
    for prompt, tokens in zip(PROMPTS, result.tokens, strict=True):
        ids = torch.tensor([prompt])
        expected = generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)
        assert tokens == expected[0, len(prompt) :].tolist()
    per_token = footprint(model_shape(read_config(model))).kv_bytes_per_token
    block = 128
    assert 0 <= 2**23 // per_token - result.kv_cache_tokens < block


@pytest.mark.vllm
@pytest.mark.all  # a failing child is tested without vLLM too
def test_a_failing_engine_is_told_with_the_end_of_its_log(model: Path) -> None:
    with pytest.raises(ChildError) as caught:
        greedy_tokens(model, PROMPTS, 8, dtype="int3")
    message = str(caught.value)
    assert message.startswith("vLLM failed with exit status 1; its log ends:\n")
    assert "'float32'" in message


def test_an_engine_that_takes_too_long_is_ended(model: Path) -> None:
    with pytest.raises(ChildError, match=r"^vLLM gave no answer within 0\.5 s; its log ends:\n"):
        greedy_tokens(model, PROMPTS, 8, timeout_seconds=0.5)


def test_models_that_cannot_be_served_are_refused_before_vllm_starts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_process, "version", lambda _: "0.32.0+cpu")
    with pytest.raises(InputError, match="tensor-parallel size 4 does not divide the KV groups"):
        greedy_tokens(model, PROMPTS, 8, tensor_parallel=4)
    save_tiny("llama", tmp_path, head_dim=8)
    with pytest.raises(InputError, match="the model's heads are 8 wide"):
        greedy_tokens(tmp_path, PROMPTS, 8)


def test_vllm_that_is_not_installed_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vllm_process, "version", absent)
    with pytest.raises(InputError, match="vLLM is not installed: run pip install"):
        greedy_tokens(model, PROMPTS, 8)
