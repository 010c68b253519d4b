"""Cut a text into the sequences of tokens that learning and evaluation see."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grasp_deploy.data.documents import find_corpus, local_documents, remote_documents
from grasp_deploy.data.source import TextSource
from grasp_deploy.data.tokenizing import first_tokens, start_of
from grasp_deploy.errors import InputError, printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)  # the command line shows what it says


@dataclass(frozen=True)
class Part:
    """The share of one source in the sequences of several sources."""

    source: str
    weight: float
    split: str | None
    sequences: int

    @property
    def is_own(self) -> bool:
        """True for text that the model itself writes."""
        return TextSource(self.source).is_own


@dataclass(frozen=True)
class Blocks:
    """Sequences `token_ids` (sequences, sequence_length) int64, and their source."""

    token_ids: Tensor
    source: TextSource
    parts: tuple[Part, ...] = ()  # of several sources; none for a single source
    beginnings: Sequence[list[int]] = ()  # token ids that the model's own texts begin with, if any

    def as_dict(self) -> dict[str, Any]:
        """Provenance for records; equal hashes mean that two results saw the same tokens."""
        sequences, sequence_length = self.token_ids.shape
        return {
            **self.source.as_dict(),
            "sequence_length": sequence_length,
            "sequences": sequences,
            "token_ids_sha256": hashlib.sha256(self.token_ids.numpy().tobytes()).hexdigest(),
            **({"parts": [asdict(part) for part in self.parts]} if self.parts else {}),
        }

    def packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain values, from which `unpacked` makes the same sequences again."""
        record = asdict(replace(self, beginnings=()))
        tensors = {
            "token_ids": record.pop("token_ids"),
            "beginnings": torch.tensor([*chain(*self.beginnings)], dtype=torch.int64),
            "lengths": torch.tensor([len(ids) for ids in self.beginnings], dtype=torch.int64),
        }
        return tensors, record

    @classmethod
    def unpacked(cls, tensors: dict[str, Tensor], record: dict[str, Any]) -> Blocks:
        """The sequences that an unfinished run has packed; InputError for one of another state."""
        logger.info("text: the one that the run began with")
        try:
            begun = tensors["beginnings"].split(tensors["lengths"].tolist())
            made = {
                "source": TextSource(**record["source"]),
                "parts": tuple(Part(**part) for part in record["parts"]),
                "beginnings": [ids.tolist() for ids in begun if len(ids)],
            }
            return cls(tensors["token_ids"], **{**record, **made})
        except (KeyError, TypeError) as error:
            raise InputError(
                "the unfinished run is of another state of this package: start over with "
                "--overwrite alone"
            ) from error


def read_blocks(
    tokenizer: PreTrainedTokenizerBase,
    source: TextSource,
    sequence_length: int,
    sequences: int,
    *,
    or_fewer: bool = False,
) -> Blocks:
    """The first `sequences` of a source's text, (n, sequence_length) int64.

    Documents are joined by a blank line, tokenised without special tokens and cut without
    overlap; the rest is dropped. What `start_of` asks for begins each sequence. Raises InputError
    as `read_documents` does, and if there are fewer than `sequences`; with `or_fewer` only if there
    is none.
    """
    start = start_of(tokenizer)
    width = sequence_length - len(start)
    tokens = sequences * width + len(start)
    documents = read_documents(source, tokenizer, tokens)
    ids = first_tokens(tokenizer, documents, tokens)
    ids = ids[len(start) :] if ids[: len(start)] == start else ids  # chat templates write it too
    available = len(ids) // width
    needed = 1 if or_fewer else sequences
    if available < needed:
        raise InputError(
            f"{source.what} is too short: its {len(ids)} tokens give fewer sequences of "
            f"{sequence_length} ({available}) than are needed ({needed}); use more text, or "
            "fewer or shorter sequences"
        )
    count = min(sequences, available)
    token_ids = [start + ids[n * width : (n + 1) * width] for n in range(count)]
    return Blocks(torch.tensor(token_ids), source)


def read_documents(
    source: TextSource, tokenizer: PreTrainedTokenizerBase | None = None, needed: int = 0
) -> list[str]:
    """Read the documents of a corpus or a local file; with a tokenizer, chats by its template.

    Of a stream as many as the `needed` tokens may take.

    The log names the column, counts rows that hold nothing, and shows the first words. Splits are
    written as in `datasets`: `train`, `train[:900]`, `[10%:20%]`. Raises InputError for a source
    that is missing, unreadable, not text, empty or out of reach, and for a split or column that it
    lacks.
    """
    what, split, column = source.what, source.split, source.column
    corpus = find_corpus(what)
    if corpus:
        column, rows = remote_documents(corpus, what, split or "train", column, tokenizer, needed)
    else:
        column, rows = local_documents(Path(what), split, column, tokenizer)
    documents = [text for text in rows if text is not None]
    words = next((text.split(None, 12)[:12] for text in documents if text.strip()), None)
    if words is None:
        where = f"split {split!r} of {what}" if split else what
        raise InputError(f"{where} is empty: it holds no text; give another file or split")
    told = f"text: {source.label}" + (f", column {column!r}" if column else "")
    if empty := len(rows) - len(documents):
        told += f", {empty} of {len(rows)} rows empty and skipped"
    logger.info(printable(" ".join(f"{told}: {' '.join(words)[:60]} …".split())))
    return documents
