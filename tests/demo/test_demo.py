"""The text that comes with Python, and the model that learnt it: it is what its card says."""

import platform
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from benchmarks.train_demo_model import heldout_blocks
from grasp_deploy.demo.run import MODEL
from grasp_deploy.demo.text import MINIMUM_CHARACTERS, documents, split
from grasp_deploy.evaluate.perplexity import perplexity
from tests.cli.command import assert_refused, document, grasp_deploy, needs_vllm, succeeded

pytestmark = pytest.mark.slow  # it reads all of Python's library, and measures the model
CARD = (MODEL / "README.md").read_text()


@pytest.fixture(scope="module")
def library() -> list[str]:
    return documents()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(MODEL)


def test_there_is_enough_english_text_and_a_twentieth_is_held_out(library: list[str]) -> None:
    assert sum(map(len, library)) > 1_000_000
    assert min(map(len, library)) >= MINIMUM_CHARACTERS
    assert any("Compound statements" in document for document in library)  # a reference topic
    assert any("Wrap a single paragraph" in document for document in library)  # a docstring
    train, heldout = split(library)
    assert sorted(train + heldout) == sorted(library)
    assert 0.03 < len(heldout) / len(library) < 0.07
    assert sum(map(len, heldout)) > 40_000


def test_no_heldout_paragraph_was_read_in_training_and_sides_last(library: list[str]) -> None:
    train, heldout = split(library)
    known = {part for document in train for part in document.split("\n\n")}
    assert known.isdisjoint(part for document in heldout for part in document.split("\n\n"))
    edited = [document + "\n\nNew in version 3.99: a sentence." for document in heldout]
    assert split(edited) == ([], edited)


def figure(pattern: str) -> float:
    """The number that the card gives where `pattern` has its group."""
    found = re.search(pattern, CARD)
    assert found, f"the card has nothing that matches {pattern}"
    return float(found.group(1).replace(",", ""))


def test_the_card_tells_the_parameters_and_the_heldout_perplexity(
    tokenizer: PreTrainedTokenizerBase, library: list[str]
) -> None:
    model = LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32)  # fast on any CPU
    assert model.num_parameters() == figure(r"model of ([\d,]+) parameters")
    measured = perplexity(model, heldout_blocks(tokenizer, split(library)[1]), batch_size=8)
    trained_on_this_python = f"CPython {platform.python_version()}:" in CARD
    assert measured.tokens == figure(r"([\d,]+) predicted tokens") or not trained_on_this_python
    # Other Python versions have other text.
    told = figure(r"Held-out perplexity: ([\d.]+)")
    assert measured.perplexity == pytest.approx(told, rel=0.01 if trained_on_this_python else 0.15)


@pytest.mark.vllm
@needs_vllm
def test_the_demo_keeps_its_checkpoint_where_it_is_told(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert "completion: " in succeeded("demo", "--output", kept).stdout
    checks = document("verify", kept / "pruned", "--json")["checks"]
    assert checks and all(check["ok"] for check in checks)
    assert {path.suffix for path in kept.iterdir()} >= {".jsonl", ".log"}
    assert_refused(grasp_deploy("demo", "--output", kept), "exists: name a new folder")
