"""The length of greedy answers: a model that forgets how to end an answer rambles on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.cache import empty_cache
from grasp_deploy.files.progress import OnCount

PROMPTS_AT_ONCE = 16


def answer_lengths(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    most_tokens: int,
    ends: set[int],
    on_count: OnCount,
) -> list[int | None]:
    """Tokens of each greedy answer before its end; None for one that never ended.

    Prompts of like length run together.
    """
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    lengths: list[int | None] = [None] * len(prompts)
    for first in range(0, len(order), PROMPTS_AT_ONCE):
        places = order[first : first + PROMPTS_AT_ONCE]
        found = _lengths(model, [prompts[place] for place in places], most_tokens, ends)
        for place, length in zip(places, found, strict=True):
            lengths[place] = length
        on_count(first + len(places), len(order))
    return lengths


@torch.no_grad()
def _lengths(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], most_tokens: int, ends: set[int]
) -> list[int | None]:
    """The lengths of one batch; a short prompt is answered while longer ones are still read.

    So no row needs padding, and every position is that of a row alone.
    """
    read = min(map(len, prompts))
    ids = torch.tensor([list(prompt[:read]) for prompt in prompts])
    cache = empty_cache(model, len(prompts), max(map(len, prompts)) + most_tokens)
    lengths: list[int | None] = [None] * len(prompts)
    while True:
        output = model(
            input_ids=ids.to(model.device), past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        likeliest = output.logits[:, -1].argmax(-1).tolist()
        open_rows = False
        for row, prompt in enumerate(prompts):
            answered = read - len(prompt)  # tokens of the answer before this one
            if answered < 0:
                likeliest[row] = prompt[read]
            elif lengths[row] is None and answered < most_tokens and likeliest[row] in ends:
                lengths[row] = answered
            open_rows |= lengths[row] is None and answered + 1 < most_tokens
        if not open_rows:
            return lengths
        ids, read = torch.tensor(likeliest)[:, None], read + 1
