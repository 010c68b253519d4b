"""A few prompts that models answer side by side: the quickest look at what was lost."""

from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from grasp_deploy.checkpoint.read.loading import end_tokens
from grasp_deploy.checkpoint.verify_answers import greedy_tokens
from grasp_deploy.data.table import write_chat
from grasp_deploy.data.tokenizing import tokens
from grasp_deploy.errors import InputError, printable

ANSWER_TOKENS = 40
CUT = ["…"]  # follows an answer that would go on
PROMPTS = (  # for a fact, an explanation and code: as a question, and as the beginning of a text
    ("What is the capital of France?", "The capital of France is"),
    ("Why is the sky blue? Answer in one sentence.", "The sky is blue because"),
    ("Write a Python function that adds two numbers.", "def add(a, b):"),
)


def prompts_for(tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, list[int]]]:
    """Prompts and their token ids: questions for a model that was tuned to chat.

    Beginnings of text for any other, and where the chat template refuses.
    """
    try:
        return [
            (ask, tokens(tokenizer, write_chat(tokenizer, [ask], "a prompt", asks=True) or ask))
            for ask, _ in PROMPTS
        ]
    except InputError:
        return [(text, tokens(tokenizer, text, add_special_tokens=True)) for _, text in PROMPTS]


@torch.no_grad()
def answers(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """What a causal model says to each prompt, by its most likely tokens, in one line."""
    told = []
    ends = end_tokens(model, tokenizer.eos_token_id)
    for _, prompt in prompts_for(tokenizer):
        ids = torch.tensor([prompt], device=model.device)
        room = model.config.max_position_embeddings - ids.shape[1]
        if room < 1 or not prompt:
            told.append("")
            continue
        # Not by generate(), which takes a repetition_penalty from generation_config.json.
        (new,) = greedy_tokens(model, ids, min(ANSWER_TOKENS, room))
        end = next((place for place, token in enumerate(new) if token in ends), None)
        answer = printable(str(tokenizer.decode(new[:end], skip_special_tokens=True))).split()
        told.append(" ".join([*answer, *CUT * (end is None)]))
    return told
