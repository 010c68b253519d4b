"""Calibration text: sequences of one source, or of several, interleaved by their weights.

For a source that the model writes itself, only the beginnings of its texts are made here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grasp_deploy.data.blocks import Blocks, Part, read_blocks, read_documents
from grasp_deploy.data.documents import find_corpus, has_columns
from grasp_deploy.data.source import TextSource
from grasp_deploy.data.table import write_chat
from grasp_deploy.data.tokenizing import readable_failures, tokens
from grasp_deploy.errors import InputError, printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


logger = logging.getLogger(__name__)  # the command line shows what it says


def read_calibration(
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[TextSource],
    sequence_length: int,
    sequences: int,
    *,
    repeats: bool = False,
) -> Blocks:
    """Read each source's share of `sequences`, spread evenly; raises as `shares` does.

    The places of the model's own text hold zeros until it has been written. With `repeats` a text
    that is too short begins again where it ends, and the log says so.
    """

    def read(source: TextSource, count: int) -> Blocks:
        blocks = read_blocks(tokenizer, source, sequence_length, count, or_fewer=repeats)
        if (fresh := len(blocks.token_ids)) < count:
            told = f"has {fresh:,} of the {count:,} sequences to read, and begins again at its end"
            logger.info(f"text: {printable(source.label)} {told}")
        rows = torch.arange(count) % fresh
        return replace(blocks, token_ids=blocks.token_ids[rows])

    if len(sources) == 1 and not sources[0].is_own:
        return read(sources[0], sequences)
    counts = shares([source.weight for source in sources], sequences)
    mixed = torch.zeros(sequences, sequence_length, dtype=torch.int64)
    parts = []
    of_any = any(has_columns(source.what) for source in sources)
    for source, count, places in zip(sources, counts, places_of(counts), strict=True):
        if of_any and not has_columns(source.what):
            source = replace(source, column=None)  # the column is meant for the other sources
        if not source.is_own:
            mixed[places] = read(source, count).token_ids
        parts.append(Part(source.what, source.weight, source.split, count))
    splits = {source.split for source in sources}
    whole = replace(
        sources[0],
        what=", ".join(f"{source.what}={source.weight:g}" for source in sources),
        split=splits.pop() if len(splits) == 1 else None,
    )
    own = [source for source in sources if source.is_own]
    starts = [ids for source in own for ids in beginnings(tokenizer, source, sequence_length)]
    return Blocks(mixed, whole, tuple(parts), starts)


def own_places(parts: Sequence[Part]) -> Tensor:
    """Positions `(n,)` int64 of the sequences that the model writes itself."""
    places = places_of([part.sequences for part in parts])
    own = [place for part, place in zip(parts, places, strict=True) if part.is_own]
    return torch.cat(own) if own else torch.empty(0, dtype=torch.int64)


def shares(weights: Sequence[float], total: int) -> list[int]:
    """Share out `total` sequences by weight, at least one to each source.

    Each next sequence goes to the source that lacks most, the first of equal ones. So the largest
    remainders are rounded up. Raises InputError for fewer sequences than sources.
    """
    if total < len(weights):
        raise InputError(
            f"{total} sequences cannot hold one of each of {len(weights)} sources: use "
            f"--calibration-sequences {len(weights)} or more, or fewer sources (--calibration "
            "self=0 leaves the model's own text out)"
        )
    exact = [Fraction(str(weight)) for weight in weights]  # of the decimals, so that equal ones tie
    exact = [weight * total / sum(exact) for weight in exact]
    # Lacks of `len(exact)` and more come first, and the total covers all of them: one step.
    counts = [max(1, int(share) + 1 - len(exact)) for share in exact]
    for _ in range(total - sum(counts)):
        counts[max(range(len(counts)), key=lambda place: exact[place] - counts[place])] += 1
    return counts


def places_of(counts: Sequence[int]) -> list[Tensor]:
    """Positions of each source's sequences among all: `(count,)` int64 each, ascending.

    The `k`-th of `n` belongs `k/n` of the way, the first named source first. So every source has a
    sequence near the start, and any run of sequences has its share of each.
    """
    wanted = [
        (Fraction(place, count), source)
        for source, count in enumerate(counts)
        for place in range(count)
    ]
    order = torch.tensor([source for _, source in sorted(wanted)])
    return [(order == source).nonzero().flatten() for source in range(len(counts))]


def beginnings(
    tokenizer: PreTrainedTokenizerBase, source: TextSource, sequence_length: int | None = None
) -> list[list[int]]:
    """Token ids that the model's own texts begin with, for a source `self[:PROMPTS]`.

    A tokenizer with a chat template writes prompts by it: those of the file or data set, or a list
    of our own. Beside ours as many texts begin with a token drawn from the vocabulary, so that the
    model writes what is no chat too. Any other tokenizer begins with each prompt as it is, or with
    the first token of every text. Prompts that fill more than half of a sequence are left out, and
    the log counts them: the model is to write.

    Raises InputError as `read_documents` does, for a file's prompts that are all too long, and for
    a tokenizer that knows no first token.
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
    if sequence_length is not None:
        written = [ids for ids in written if 2 * len(ids) <= sequence_length]
        if long := len(prompts) - len(written):
            told = f"{long:,} of {len(prompts):,} prompts fill more than half of a sequence"
            logger.info(f"text: {told} of {sequence_length} tokens, and are left out")
        if source.prompts and not written:
            raise InputError(
                f"each prompt of {source.prompts.what} fills more than half of a sequence of "
                f"{sequence_length} tokens, and leaves the model too little to write: give shorter "
                "prompts or a longer --sequence-length"
            )
    if asks and not source.prompts:
        written += _drawn_tokens(tokenizer, len(prompts))
    return [ids for ids in written if ids] or [[_first_token(tokenizer)]]


def _drawn_tokens(tokenizer: PreTrainedTokenizerBase, count: int) -> list[list[int]]:
    """Up to `count` beginnings of no prompt: one token each, the same ones in every run.

    Only tokens that their own text is tokenised to: no part of a character, no filler of the
    vocabulary.
    """
    before = tokens(tokenizer, "", add_special_tokens=True)
    with readable_failures():
        special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
        words = sorted({*tokenizer.get_vocab().values()} - special)
        drawn = Random(0).choices(words, k=4 * count) if words else []
        whole = (t for t in drawn if tokens(tokenizer, str(tokenizer.decode([t]))) == [t])
        return [[*before, token] for token in islice(whole, count)]


def _prompts_of(source: TextSource) -> list[str]:
    """The prompts of a file or data set: rows, or of plain text the lines that are not blank."""
    if find_corpus(source.what) or has_columns(source.what):
        return read_documents(source)
    text = "\n".join(read_documents(replace(source, column=None)))  # plain text has no column
    return [line for line in text.split("\n") if line.strip()]


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
