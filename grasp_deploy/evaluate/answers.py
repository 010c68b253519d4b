"""A few prompts that models answer side by side: the quickest look at what was lost."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from grasp_deploy.checkpoint.read.loading import end_tokens
from grasp_deploy.data.table import write_chat
from grasp_deploy.data.tokenizing import tokens

ANSWER_TOKENS = 40
PROMPTS = (  # of a fact, of an explanation, of code; and how text goes on that asks nothing
    ("What is the capital of France?", "The capital of France is"),
    ("Why is the sky blue? Answer in one sentence.", "The sky is blue because"),
    ("Write a Python function that adds two numbers.", "def add(a, b):"),
)


def prompts_for(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Questions for a model that was tuned to chat, beginnings of text for any other."""
    return [prompt[tokenizer.chat_template is None] for prompt in PROMPTS]


@torch.no_grad()
def answers(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """What a causal model says to each prompt, by its most likely tokens, in one line."""
    told = []
    ends = sorted(end_tokens(model, tokenizer.eos_token_id))
    for prompt in prompts_for(tokenizer):
        asks = tokenizer.chat_template is not None
        text = write_chat(tokenizer, [prompt], "a prompt", asks=True) if asks else prompt
        ids = torch.tensor([tokens(tokenizer, text or prompt, add_special_tokens=not asks)])
        room = model.config.max_position_embeddings - ids.shape[1]
        greedy = GenerationConfig(
            do_sample=False,
            max_new_tokens=max(1, min(ANSWER_TOKENS, room)),
            eos_token_id=ends or None,
            pad_token_id=0,
        )
        ids = ids.to(model.device)
        everything = torch.ones_like(ids)
        written = model.generate(ids, attention_mask=everything, generation_config=greedy)
        answer = tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
        told.append(" ".join(str(answer).split()))
    return told
