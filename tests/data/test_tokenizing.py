"""Tokenizers are programs of strangers: each ends, in tokens or in one line."""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from grasp_deploy.data import bounded
from grasp_deploy.data.tokenizing import SAMPLE, readable_failures, tokens, traits
from grasp_deploy.errors import InputError
from tests.tiny import tiny_tokenizer

Load = Callable[[], PreTrainedTokenizerFast]
DOUBLING = {"type": "Replace", "pattern": {"Regex": "."}, "content": "xx"}
DOUBLED_E = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}
NORMALISED = {"id": 256, "content": "hello", "normalized": True, "special": False} | dict.fromkeys(
    ("single_word", "lstrip", "rstrip"), False
)


def loading(**parts: Any) -> Load:
    """A function that loads the tiny tokenizer with other parts in its file."""
    content = json.loads(tiny_tokenizer().backend_tokenizer.to_str()) | parts

    def load() -> PreTrainedTokenizerFast:
        faulthandler.disable()  # pytest's would print of a child that aborts
        return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content)))

    return load


def doubled(times: int) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [DOUBLING] * times}


def cut(pattern: str) -> dict[str, Any]:
    """A Split before the tiny tokenizer's own pre-tokenizer."""
    how = {"behavior": "Isolated", "invert": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, **how}
    own = json.loads(tiny_tokenizer().backend_tokenizer.to_str())["pre_tokenizer"]
    return {"type": "Sequence", "pretokenizers": [split, own]}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}}, "index out"),
        ({"normalizer": {**DOUBLING, "pattern": {"String": ""}}}, "index out of bounds"),
        ({"pre_tokenizer": cut(r"(\w+\s?)+\d\d\d\d$")}, "retry-limit"),
        ({"normalizer": doubled(8)}, "tokens of 4"),
        ({"normalizer": doubled(40)}, "did not end within 0.5 s"),
        ({"normalizer": doubled(40), "added_tokens": [NORMALISED]}, "did not end within 0.5 s"),
        ({"decoder": {"type": "Sequence", "decoders": [DOUBLED_E] * 16}}, "characters of 4"),
        ({"model": {}}, "did not match"),
    ],
)
def test_tokenizers_that_are_refused(
    parts: dict[str, Any],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bounded, "PATIENCE_SECONDS", 0.5 if "within" in words else 60.0)
    assert words in traits(loading(**parts))["refusal"]
    assert capfd.readouterr().err == ""


def ended() -> NoReturn:
    os._exit(0)


def test_one_that_takes_all_memory_or_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MEMORY_BYTES", 2**25)
    monkeypatch.setattr(bounded, "PATIENCE_SECONDS", 60.0)
    for load in (loading(normalizer=doubled(40)), ended):
        assert traits(load)["refusal"] == "it ended the process that it ran in"


def test_a_good_one_is_passed() -> None:
    assert "refusal" not in traits(loading()) and 400 <= len(SAMPLE) <= 800


def test_a_panic_on_one_text_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    load = loading(pre_tokenizer=cut(r"(z+z?)+\d$"))
    assert "refusal" not in traits(load)
    with pytest.raises(InputError, match=r"cannot read this text \(PanicException: Onig.*: put"):
        tokens(load(), "z" * 60)
    assert tokens(load(), "zz") == tokens(tiny_tokenizer(), "zz")
    assert capfd.readouterr().err == ""
    os.write(2, b"back")
    assert capfd.readouterr().err == "back"


def test_signals_pass() -> None:
    with pytest.raises(KeyboardInterrupt), readable_failures():
        raise KeyboardInterrupt
