"""The embedded model is what its card says."""

import json
import platform
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

import grasp_deploy.demo
from benchmarks.train_demo_model import SEPARATOR, perplexity
from grasp_deploy.demo.text import documents, split

pytestmark = pytest.mark.slow  # it measures the embedded model

FOLDER = Path(grasp_deploy.demo.__file__).parent / "model"
CARD = (FOLDER / "README.md").read_text()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


def figure(pattern: str) -> float:
    """The number that the card gives where `pattern` has its group."""
    found = re.search(pattern, CARD)
    assert found, f"the card has nothing that matches {pattern}"
    return float(found.group(1).replace(",", ""))


def test_the_model_is_a_small_grouped_llama() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= 7_000_000
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["head_dim"] == 32  # a head size that vLLM's CPU build takes
    assert config["num_attention_heads"] == 2 * config["num_key_value_heads"]
    assert config["dtype"] == "bfloat16"


def test_every_string_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "Déjà vu: 数 \t def f(x):\n    return x ** 2  # \N{SNOWMAN}"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.bos_token_id is not None and tokenizer.eos_token_id is not None


def test_the_card_tells_the_parameters_and_the_heldout_perplexity(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.bfloat16)
    assert model.num_parameters() == figure(r"model of ([\d,]+) parameters")

    _, heldout = split(documents())
    tokens = tokenizer(SEPARATOR.join(heldout), verbose=False)["input_ids"]
    measured, counted = perplexity(model, torch.tensor(tokens))
    told = figure(r"Held-out perplexity: ([\d.]+)")
    trained_on_this_python = f"CPython {platform.python_version()}:" in CARD
    assert counted == figure(r"([\d,]+) predicted tokens") or not trained_on_this_python
    # Other Python versions have other text; other processors round bfloat16 differently.
    assert measured == pytest.approx(told, rel=0.01 if trained_on_this_python else 0.15)
