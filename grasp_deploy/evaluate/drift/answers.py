"""Greedy answers and their lengths: a model that forgets how to end an answer rambles on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.cache import CACHE, empty_cache
from grasp_deploy.files.progress import OnCount

PROMPTS_AT_ONCE = 16


@dataclass
class Answer:
    """The tokens of an answer before its end, and whether it ended at all."""

    token_ids: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def length(self) -> int | None:
        """Tokens before the end; None for an answer that never ended."""
        return len(self.token_ids) if self.ended else None


def greedy_answers(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    most_tokens: int,
    ends: set[int],
    on_count: OnCount,
) -> list[Answer]:
    """The likeliest token after token, until one ends the answer or it has `most_tokens`.

    Prompts of like length run together.
    """
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    answers = [Answer() for _ in prompts]
    for first in range(0, len(order), PROMPTS_AT_ONCE):
        places = order[first : first + PROMPTS_AT_ONCE]
        chosen = [answers[place] for place in places]
        _answer(model, [prompts[place] for place in places], chosen, most_tokens, ends)
        on_count(first + len(places), len(order))
    return answers


@torch.no_grad()
def _answer(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Answer],
    most_tokens: int,
    ends: set[int],
) -> None:
    """Answer one batch; a short prompt is answered while longer ones are still read.

    So no row needs padding, and every position is that of a row alone.
    """
    read = min(map(len, prompts))
    ids = torch.tensor([list(prompt[:read]) for prompt in prompts])
    cache = empty_cache(model, len(prompts), max(map(len, prompts)) + most_tokens)
    while True:
        output = model(
            input_ids=ids.to(model.device), use_cache=True, logits_to_keep=1, **{CACHE: cache}
        )
        likeliest = output.logits[:, -1].argmax(-1).tolist()
        open_rows = False
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            if read < len(prompt):
                likeliest[row] = prompt[read]
            elif not answer.ended and len(answer.token_ids) < most_tokens:
                answer.ended = likeliest[row] in ends
                if not answer.ended:
                    answer.token_ids.append(likeliest[row])
            open_rows |= not answer.ended and len(answer.token_ids) < most_tokens
        if not open_rows:
            return
        ids, read = torch.tensor(likeliest)[:, None], read + 1
