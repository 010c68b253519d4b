"""Logits and greedy tokens of models on the prompts of a verification, and their comparison."""

import torch
from torch import Tensor, nn

from grasp_deploy.checkpoint.cache import CACHE
from grasp_deploy.checkpoint.read.validate import StoredModel
from grasp_deploy.checkpoint.verify_files import Difference
from grasp_deploy.errors import first_line, is_out_of_memory

TOLERANCE = 1e-4  # of the largest logit (at least 1): float32 sums in another order differ by less
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 8, 16, 32

Tokens = list[list[int]]


def prompts_for(model: StoredModel) -> Tensor:
    """`(prompts, T)` random token ids, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    shape = (PROMPTS, PROMPT_TOKENS)
    return torch.randint(model.shape.vocab_size, shape, generator=generator)


@torch.no_grad()
def logits_of(model: nn.Module, prompts: Tensor) -> Tensor:
    """`(prompts, T, V)` float32 logits; Difference if config.json makes the forward pass fail."""
    try:
        ids = prompts.to(next(model.parameters()).device)
        logits: Tensor = model(input_ids=ids).logits
    except Exception as error:  # whatever transformers makes of an odd value
        if is_out_of_memory(error):
            raise
        reason = f"{type(model).__name__} cannot run ({type(error).__name__}: {first_line(error)})"
        raise Difference(f"{reason}: check config.json") from error
    return logits.float().cpu()


@torch.no_grad()
def greedy_tokens(model: nn.Module, prompts: Tensor, new_tokens: int) -> Tokens:
    """The likeliest continuation of `(n, T)` prompts, token by token with a KV cache."""
    ids = prompts.to(next(model.parameters()).device)
    cache, chosen = None, []
    for _ in range(new_tokens):
        output = model(input_ids=ids, use_cache=True, **{CACHE: cache})
        cache, ids = output[CACHE], output.logits[:, -1:].argmax(-1)
        chosen.append(ids)
    return torch.cat(chosen, dim=1).tolist()


def compare_logits(names: str, expected: Tensor, actual: Tensor) -> str:
    difference = float((expected - actual).abs().max())
    allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
    if not difference <= allowed:
        raise Difference(f"{names}: logits differ by {difference:.3g}, more than {allowed:.3g}")
    return f"{names}: logits differ by at most {difference:.2g} (allowed {allowed:.2g})"


def same_tokens(left: str, expected: Tokens, right: str, actual: Tokens) -> None:
    different = (torch.tensor(expected) != torch.tensor(actual)).nonzero().tolist()
    for prompt, token in different[:1]:
        raise Difference(
            f"greedy tokens differ first at prompt {prompt}, token {token}: {left} gives "
            f"{expected[prompt][token]}, {right} gives {actual[prompt][token]}"
        )
