"""Servers of several workers: greedy tokens are those of the whole model in one process."""

import json
import re
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.verify_answers import greedy_tokens
from grasp_deploy.engine.serve import running_server
from tests.answering import posted
from tests.cli.command import needs_vllm
from tests.tiny import save_tiny, slice_by_hand

pytestmark = [pytest.mark.vllm, needs_vllm]
SMALL = ["--max-model-len", "64", "--kv-cache-memory-bytes", str(16 * 2**20)]
EAGER = "--enforce-eager"
# KV groups and FFN channels of each layer: two workers share all of them, none is like another.
# Of a layer with one group both hold a copy.
LAYERS = (((0, 1, 2, 3), 96), ((3,), 64), ((1, 2), 34))
NEW_TOKENS = 32
PROMPTS = torch.randint(256, (8, 16), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder for the model and the logs of its servers."""
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def model(folder: Path) -> PreTrainedModel:
    """The pruned model, also as a checkpoint."""
    dense = save_tiny("llama", folder, num_attention_heads=8, num_key_value_heads=4)
    pruned = slice_by_hand(dense, [(groups, range(channels)) for groups, channels in LAYERS])
    pruned.save_pretrained(folder)
    return pruned


def complete(url: str, prompt: list[int]) -> list[int]:
    """The token ids with which a server continues a prompt."""
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        name = json.load(response)["data"][0]["id"]
    body = {"model": name, "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0}
    body |= {"ignore_eos": True, "return_token_ids": True}
    tokens: list[int] = posted(f"{url}/v1/completions", body)["choices"][0]["token_ids"]
    return tokens


def served(folder: Path, flags: Sequence[str]) -> tuple[list[list[int]], str, str]:
    """What a server answers to all prompts at once; its metrics then, and its log."""
    log = folder / "server.log"
    with (
        running_server(folder, [*SMALL, *flags], log) as url,
        ThreadPoolExecutor(len(PROMPTS)) as pool,
    ):
        tokens = list(pool.map(partial(complete, url), PROMPTS.tolist()))
        with urllib.request.urlopen(f"{url}/metrics") as response:
            metrics = response.read().decode()
    return tokens, metrics, log.read_text()


@pytest.mark.parametrize(
    ("flags", "copies"),
    [
        pytest.param(["-tp", "2", EAGER], 1, id="tensor"),
        pytest.param(["-dp", "2", EAGER], 2, id="data"),
        pytest.param(["-pp", "2"], 1, id="pipeline", marks=pytest.mark.all),
    ],
)
def test_native_layers(flags: list[str], copies: int, folder: Path, model: PreTrainedModel) -> None:
    tokens, metrics, log = served(folder, flags)
    assert "Resolved architecture: GraspLlamaForCausalLM" in log
    assert tokens == greedy_tokens(model, PROMPTS, NEW_TOKENS)
    answered = re.findall(r"^vllm:generation_tokens_total{.*} (\S+)$", metrics, re.MULTILINE)
    assert len(answered) == copies
    assert all(float(count) > 0 for count in answered), "each copy has worked"


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["-tp", "2", EAGER], id="tensor"),
        pytest.param(["-pp", "2"], id="pipeline", marks=pytest.mark.all),
    ],
)
def test_remote_code(
    flags: list[str], folder: Path, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.setenv("HF_MODULES_CACHE", str(folder / "modules"))
    tokens, _, log = served(folder, ["--trust-remote-code", *flags])
    assert "Resolved architecture: TransformersForCausalLM" in log
    assert tokens == greedy_tokens(model, PROMPTS, NEW_TOKENS)
