"""Greedy answers of the study, prompts of several lengths together, against one at a time."""

from __future__ import annotations

import pytest
import torch

from benchmarks import reasoning
from benchmarks.reasoning import greedy_answers
from grasp_deploy.checkpoint.verify import greedy_tokens
from tests.tiny import tiny_model

PROMPTS = [list(b"one two three"), [65], list(b"four"), list(b"seven"), list(b"five")]


@pytest.mark.parametrize("at_once", [1, 16])
def test_answers_are_those_of_each_prompt_alone(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasoning, "PROMPTS_AT_ONCE", at_once)
    model = tiny_model("llama")
    alone = [greedy_tokens(model, torch.tensor([prompt]), 24)[0] for prompt in PROMPTS]
    # Some answers end at once, some at the last token that they may have, some never.
    ends = {alone[0][0], alone[2][-1], alone[3][7]}
    expected = []
    for tokens in alone:
        end = next((place for place, token in enumerate(tokens) if token in ends), None)
        expected.append(tokens[:end])
    assert len(set(map(len, expected))) > 2 and {0, 24} <= set(map(len, expected))
    assert greedy_answers(model, PROMPTS, 24, ends) == expected
