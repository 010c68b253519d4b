"""What a model's own text begins with: its first token, or prompts written by its chat template."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING

from grasp_deploy.data.blocks import read_documents
from grasp_deploy.data.chat import write_chat
from grasp_deploy.data.corpora import find_corpus
from grasp_deploy.data.files import has_columns
from grasp_deploy.data.source import TextSource
from grasp_deploy.data.tokenizing import tokens
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def beginnings(
    tokenizer: PreTrainedTokenizerBase, source: TextSource, sequence_length: int | None = None
) -> list[list[int]]:
    """Token ids that the model's own texts begin with, for a source `self[:PROMPTS]`.

    A tokenizer with a chat template writes prompts by it: those of the file or data set, or a list
    of our own. Any other begins with each prompt as it is, or with the first token of every text.
    Prompts of a file that fill more than half of a sequence are left out: the model is to write.

    Raises InputError as `read_documents` does, for prompts that are all too long, and for a
    tokenizer that knows no first token.
    """
    asks = tokenizer.chat_template is not None
    prompts = _prompts_of(source.prompts) if source.prompts else []
    if asks and not prompts:
        prompts = files("grasp_deploy.data").joinpath("prompts.txt").read_text("utf-8").splitlines()
    if asks:
        prompts = [
            write_chat(tokenizer, [ask], f"prompt {number} (counted from 0)", asks=True) or ""
            for number, ask in enumerate(prompts)
        ]
    written = [tokens(tokenizer, prompt, add_special_tokens=not asks) for prompt in prompts]
    if source.prompts and sequence_length is not None:
        written = [ids for ids in written if 2 * len(ids) <= sequence_length]
        if not written:
            raise InputError(
                f"each prompt of {source.prompts.what} fills more than half of a sequence of "
                f"{sequence_length} tokens, and leaves the model too little to write: give shorter "
                "prompts or a longer --sequence-length"
            )
    return [ids for ids in written if ids] or [[_first_token(tokenizer)]]


def _prompts_of(source: TextSource) -> list[str]:
    """The prompts of a file or data set: rows, or of plain text the lines that are not blank."""
    if find_corpus(source.what) or has_columns(source.what):
        return read_documents(source)
    text = "\n".join(read_documents(replace(source, column=None)))  # it is meant for others
    return [line for line in text.splitlines() if line.strip()]


def _first_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that texts begin with: of some families the one that also ends them."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise InputError(
        "the model cannot write its own text to calibrate on, since its tokenizer names no token "
        "that a text begins with: give text alone (--calibration FILE --calibration self=0) or "
        "prompts (--calibration self:PROMPTS)"
    )
