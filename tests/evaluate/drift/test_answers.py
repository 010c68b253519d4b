"""Lengths of greedy answers, in batches of unequal prompts, against one prompt at a time."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from grasp_deploy.checkpoint.verify import greedy_tokens
from grasp_deploy.evaluate.drift import answers as module
from grasp_deploy.evaluate.drift.answers import greedy_answers
from tests.tiny import tiny_model

MOST = 24
PROMPTS = [list(b"one two three"), [65], list(b"four"), list(b"seven"), list(b"six")]


def told(counts: list[tuple[int, int]], *row: int) -> None:
    counts.append((row[0], row[1]))


def test_lengths_are_those_of_each_prompt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    written = [greedy_tokens(model, torch.tensor([prompt]), MOST)[0] for prompt in PROMPTS]
    # Some answers end at once, some at the last token that they may have, some never.
    ends = {written[0][0], written[2][-1], written[3][7]}
    expected = [
        next((place for place, token in enumerate(tokens) if token in ends), None)
        for tokens in written
    ]
    assert 0 in expected and None in expected and len(set(expected)) > 2, expected
    for at_once in (1, 2, 16):
        monkeypatch.setattr(module, "PROMPTS_AT_ONCE", at_once)
        counts: list[tuple[int, int]] = []
        found = greedy_answers(model, PROMPTS, MOST, ends, partial(told, counts))
        assert ([answer.length for answer in found], counts[-1]) == (expected, (5, 5))
        told_tokens = [tokens[:length] for tokens, length in zip(written, expected, strict=True)]
        assert [answer.token_ids for answer in found] == told_tokens
    [endless] = greedy_answers(model, PROMPTS[:1], MOST, set(), partial(told, []))
    assert endless.length is None and endless.token_ids == written[0]
