"""A tokenizer gives the same tokens in every call, or is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

from grasp_deploy.checkpoint.read.loading import load_tokenizer
from grasp_deploy.errors import InputError
from tests.cli.command import edit_json
from tests.tiny import save_tiny

TEXT = "an été in 2024"
PRECOMPILED = {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}
SLOW_REGEX = {
    **{"type": "Split", "pattern": {"Regex": r"(\w+\s?)+\d\d\d\d$"}},
    **{"behavior": "Isolated", "invert": False},
}


def test_dropout_is_for_training(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    vocabulary = {"a": 0, "aa": 1, "aaaa": 2}
    merges = [("a", "a"), ("aa", "aa")]
    Tokenizer(models.BPE(vocabulary, merges, dropout=0.5)).save(str(tmp_path / "tokenizer.json"))
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["dropout"] == 0.5
    assert load_tokenizer(tmp_path)("a" * 400)["input_ids"] == [2] * 100


def test_a_byte_level_tokenizer_keeps_its_spaces(tmp_path: Path) -> None:
    """Its folder may name a class of SentencePiece, as DeepSeek-R1-Distill-Llama does."""
    save_tiny("llama", tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", tokenizer_class="LlamaTokenizerFast")
    assert decoded(AutoTokenizer.from_pretrained(tmp_path)) == TEXT.replace(" ", "")
    assert decoded(load_tokenizer(tmp_path)) == TEXT


def decoded(tokenizer: Any) -> str:
    return str(tokenizer.decode(tokenizer(TEXT)["input_ids"], skip_special_tokens=True))


@pytest.mark.parametrize(
    ("name", "parts", "words"),
    [
        ("tokenizer.json", {"normalizer": PRECOMPILED}, "index out"),
        ("tokenizer.json", {"pre_tokenizer": SLOW_REGEX}, "retry-limit"),
        ("tokenizer.json", {"model": {}}, "did not match"),
        ("config.json", {"initializer_range": "x"}, r"initializer_range.*check its config"),
    ],
)
def test_one_that_fails_is_refused_in_one_line(
    name: str, parts: dict[str, Any], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_tiny("llama", tmp_path)
    path = tmp_path / name
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    capfd.readouterr()
    with pytest.raises(InputError, match=words) as refusal:
        load_tokenizer(tmp_path)
    assert "\n" not in str(refusal.value) and str(tmp_path) in str(refusal.value)
    assert capfd.readouterr().err == ""  # where Rust would print of a panic
