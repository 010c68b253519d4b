"""What models say to the prompts: by the chat template, or without one that refuses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.evaluate.answers import PROMPTS, answers, prompts_for
from tests.tiny import save_tiny

ASKS = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


def test_questions_for_a_chat_and_beginnings_without_a_template_that_works(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    tokenizer: Any = load_tokenizer(tmp_path)
    questions, beginnings = zip(*PROMPTS, strict=True)
    for template, expected in (
        (None, beginnings),
        (ASKS, questions),
        ("{{ raise_exception('not me') }}", beginnings),
        ("{% for", beginnings),
    ):
        tokenizer.chat_template = template
        found = prompts_for(tokenizer)
        assert tuple(prompt for prompt, _ in found) == expected, template
        model = load(tmp_path, device="cpu")
        assert len(answers(model, tokenizer)) == 3


def test_answers_are_the_most_likely_tokens_whatever_a_file_asks_for(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    model, tokenizer = load(tmp_path, device="cpu"), load_tokenizer(tmp_path)
    expected = answers(model, tokenizer)
    model.generation_config.repetition_penalty = 3.0
    assert answers(model, tokenizer) == expected


def test_answers_are_one_line_and_end_where_the_positions_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny("llama", tmp_path)
    tokenizer: Any = load_tokenizer(tmp_path)
    said: list[int] = []

    def continued(_: Any, ids: torch.Tensor, new_tokens: int) -> list[list[int]]:
        said.append(new_tokens)
        return ids.tolist()

    monkeypatch.setattr("grasp_deploy.evaluate.answers.greedy_tokens", continued)
    longest = max(len(ids) for _, ids in prompts_for(tokenizer))
    config = SimpleNamespace(max_position_embeddings=longest)
    model: Any = SimpleNamespace(config=config, device="cpu", generation_config=None)
    tokenizer.decode = lambda *_, **__: "a\x1b[31m\n  b"
    found = answers(model, tokenizer)
    assert sorted(set(found)) == ["", "a\u241b[31m b …"], found
    assert max(said) < longest
