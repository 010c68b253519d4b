"""Tokenizers and their templates are programs of strangers: each ends, or is refused in a line."""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from grasp_deploy.data import tokenizing
from grasp_deploy.data.tokenizing import SAMPLE, traits
from tests.tiny import tiny_tokenizer

Load = Callable[[], PreTrainedTokenizerFast]
DOUBLING = {"type": "Replace", "pattern": {"Regex": "."}, "content": "xx"}
NORMALISED = {"id": 256, "content": "hello", "normalized": True, "special": False} | dict.fromkeys(
    ("single_word", "lstrip", "rstrip"), False
)
LOOP = "{% for i in range(99999) %}"
REFUSING = ("{{ raise_exception('no') }}", "{% for", "{{ 'x' * 10 ** 11 }}")
LIMITS = "a try took over"


def loading(template: str | None = None, **parts: Any) -> Load:
    """A function that loads the tiny tokenizer with other parts in its file."""
    content = json.loads(tiny_tokenizer().backend_tokenizer.to_str()) | parts

    def load() -> PreTrainedTokenizerFast:
        faulthandler.disable()  # pytest's would print of a child that aborts
        backend = Tokenizer.from_str(json.dumps(content))
        return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template)

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
        ({"pre_tokenizer": cut(r"(\w+\s?)+\d\d\d\d$")}, "retry-limit"),
        ({"normalizer": doubled(40)}, LIMITS),
        ({"normalizer": doubled(40), "added_tokens": [NORMALISED]}, LIMITS),
        ({"model": {}}, "did not match"),
        ({"template": LOOP * 3 + "{% endfor %}" * 3}, LIMITS),
        ({"template": "{{ 9 ** (9 ** 9) }}"}, LIMITS),
    ],
)
def test_what_is_refused(
    parts: dict[str, Any],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tokenizing, "PATIENCE_SECONDS", 1 if words == LIMITS else 60)
    assert words in traits(loading(**parts))["refusal"]
    assert capfd.readouterr().err == ""
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def ended() -> NoReturn:
    os._exit(0)


def test_one_that_takes_all_memory_or_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "MEMORY_BYTES", 2**25)
    monkeypatch.setattr(tokenizing, "PATIENCE_SECONDS", 60)
    for load in (loading(normalizer=doubled(40)), ended):
        assert LIMITS in traits(load)["refusal"]


@pytest.mark.parametrize(
    "template", [None, "{{ raise_exception('no') }}", "{% for", "{{ 'x' * 10 ** 11 }}"]
)
def test_a_good_one_is_passed_whatever_its_template_refuses(template: str | None) -> None:
    found = traits(loading(template))
    assert "refusal" not in found and found["templates"] == template
    assert 400 <= len(SAMPLE) <= 800
