"""What models say to the prompts: by the chat template, or without one that refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def test_answers_are_one_line_and_end_where_the_positions_do(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    tokenizer: Any = load_tokenizer(tmp_path)
    said: list[int] = []

    def generate(ids: torch.Tensor, *, generation_config: Any, **_: Any) -> torch.Tensor:
        said.append(generation_config.max_new_tokens)
        return torch.cat([ids, ids], dim=1)

    longest = max(len(ids) for _, ids in prompts_for(tokenizer))
    config = SimpleNamespace(max_position_embeddings=longest)
    model: Any = SimpleNamespace(
        config=config, device="cpu", generate=generate, generation_config=None
    )
    tokenizer.decode = lambda *_, **__: "a\x1b[31m\n  b"
    found = answers(model, tokenizer)
    assert sorted(set(found)) == ["", "a\u241b[31m b …"], found
    assert max(said) < longest
