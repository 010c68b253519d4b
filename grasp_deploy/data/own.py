"""What a model's own text begins with: its first token, or prompts written by its chat template."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grasp_deploy.data.blocks import read_documents
from grasp_deploy.data.chat import chat_writer
from grasp_deploy.data.source import TextSource
from grasp_deploy.data.tokenizing import tokens
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def beginnings(tokenizer: PreTrainedTokenizerBase, source: TextSource) -> list[Tensor]:
    """Token ids `(t,)` that the model's own texts begin with, for a source `self[:PROMPTS]`.

    A tokenizer with a chat template writes prompts by it: those of the file or data set, or a list
    of our own. Any other begins with each prompt as it is, or with the first token of every text.
    Raises InputError as `read_documents` does, and for a tokenizer that knows no first token.
    """
    asks = tokenizer.chat_template is not None
    prompts = read_documents(source.prompts) if source.prompts else []
    if asks and not prompts:
        prompts = files("grasp_deploy.data").joinpath("prompts.txt").read_text("utf-8").splitlines()
    if asks:
        with chat_writer(tokenizer, asks=True) as write:
            prompts = [
                write([{"role": "user", "content": prompt}], f"prompt {number} (counted from 0)")
                for number, prompt in enumerate(prompts)
            ]
    written = [tokens(tokenizer, prompt, add_special_tokens=not asks) for prompt in prompts]
    return [torch.tensor(ids) for ids in written if ids] or [_first_token(tokenizer)]


def _first_token(tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """The token that texts begin with: of some families the one that also ends them."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return torch.tensor([token])
    raise InputError(
        "the model cannot write its own text to calibrate on, since its tokenizer names no token "
        "that a text begins with: give text alone (--calibration FILE --calibration self=0) or "
        "prompts (--calibration self:PROMPTS)"
    )
