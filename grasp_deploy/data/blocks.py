"""Cut a text into the token blocks that learning and evaluation see."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grasp_deploy.data.corpora import find_corpus, remote_documents
from grasp_deploy.data.files import local_documents
from grasp_deploy.data.source import TextSource
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

JOIN = "\n\n"
CHARACTERS_PER_TOKEN = 6  # a first guess on the high side; too low only costs a second look


@dataclass(frozen=True)
class Part:
    """The share of one source in blocks of several."""

    source: str
    weight: float
    split: str | None
    sequences: int
    documents: int


@dataclass(frozen=True)
class Blocks:
    """Token blocks `token_ids` (sequences, sequence_length) int64, and where they come from."""

    token_ids: torch.Tensor
    source: TextSource
    documents: int
    parts: tuple[Part, ...] = ()  # of several sources; none for a single source

    def as_dict(self) -> dict[str, Any]:
        """Provenance for records; equal hashes mean that two results saw the same tokens."""
        sequences, sequence_length = self.token_ids.shape
        return {
            "source": self.source.what,
            "split": self.source.split,
            "column": self.source.column,
            "documents": self.documents,
            "sequence_length": sequence_length,
            "sequences": sequences,
            "token_ids_sha256": hashlib.sha256(self.token_ids.numpy().tobytes()).hexdigest(),
            **({"parts": [asdict(part) for part in self.parts]} if self.parts else {}),
        }


def read_blocks(
    tokenizer: PreTrainedTokenizerBase,
    source: TextSource,
    sequence_length: int,
    sequences: int | None,
) -> Blocks:
    """Read a source and cut it into blocks: `read_documents`, then `token_blocks`."""
    documents = read_documents(source, tokenizer)
    token_ids = token_blocks(tokenizer, documents, sequence_length, sequences)
    return Blocks(token_ids, source, len(documents))


def read_documents(
    source: TextSource, tokenizer: PreTrainedTokenizerBase | None = None
) -> list[str]:
    """Read the documents of a corpus or a local file.

    Local `.jsonl`, `.json`, `.csv` and `.parquet`: a row is a document; any other file is plain
    text: one document, read whole. Splits are written as in `datasets`: `train`, `train[:900]`,
    `[10%:20%]`; a local file is its own `train`. The column is `text` if none is named, else
    `messages` or `conversations`, else the only one that holds strings. The chat template of
    `tokenizer` writes a row that is a list of messages. Raises InputError for a source that is
    missing, unreadable, not text, empty or out of reach, for a split or column that it lacks, and
    for conversations that cannot be written.
    """
    what, split, column = source.what, source.split, source.column
    corpus = find_corpus(what)
    if corpus:
        documents = remote_documents(corpus, what, split or "train", column, tokenizer)
    else:
        documents = local_documents(Path(what), split, column, tokenizer)
    if not any(document.strip() for document in documents):
        where = f"split {split!r} of {what}" if split else what
        raise InputError(f"{where} is empty: it holds no text; give another file or split")
    return documents


def token_blocks(
    tokenizer: PreTrainedTokenizerBase,
    documents: Sequence[str],
    sequence_length: int,
    sequences: int | None = None,
    mixed: str | None = None,
) -> torch.Tensor:
    """The first `sequences` (None: all) blocks of the joined text, (n, sequence_length) int64.

    Documents are joined by a blank line, tokenised without special tokens and cut without
    overlap; the rest is dropped. `mixed` names the source where it is one of several. Raises
    InputError if there are fewer than `sequences`.
    """
    if sequence_length < 2 or (sequences is not None and sequences < 1):
        raise InputError(
            f"{sequences} sequences of {sequence_length} tokens leave nothing to predict; "
            "use --sequences of 1 or more and --sequence-length of 2 or more"
        )
    ids = _first_tokens(tokenizer, documents, sequences and sequences * sequence_length)
    available = len(ids) // sequence_length
    if available < (sequences or 1):
        remedy = (
            "a smaller weight, fewer --sequences" if mixed else f"--sequences {available} at most"
        )
        raise InputError(
            f"the text{f' of {mixed}' if mixed else ''} is too short: its {len(ids)} tokens give "
            f"{available} blocks of {sequence_length} tokens, and {sequences or 1} are needed; use "
            f"{f'{remedy}, ' if available else ''}more text or a shorter --sequence-length"
        )
    count = sequences or available
    return torch.tensor(ids[: count * sequence_length]).view(count, sequence_length)


def _first_tokens(
    tokenizer: PreTrainedTokenizerBase, documents: Sequence[str], needed: int | None
) -> list[int]:
    """Token ids of the joined text: all of them, or at least its first `needed`.

    Tokenizers of these families split at blank lines: no merge crosses one, or a pattern cuts
    there after a look at one more character. So a last document with visible text shields all
    before it from whatever follows: those tokens are the whole text's. With enough of them the
    rest is not tokenised; 100 MB of text would cost minutes and many GiB.
    """
    end = len(documents)
    if needed is not None:
        end = _documents_within(documents, CHARACTERS_PER_TOKEN * needed)
    while True:
        text = JOIN.join(documents[:end])
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if needed is None or end == len(documents):
            return ids
        # A token takes at least one byte, and Unicode's normal forms at most triple the bytes.
        if len(ids) - 3 * len(documents[end - 1].encode()) >= needed:
            return ids
        end = _documents_within(documents, 2 * len(text + JOIN))


def _documents_within(documents: Sequence[str], characters: int) -> int:
    """Number of first documents that exceed `characters` and end with one of visible text."""
    total = 0
    for index, document in enumerate(documents):
        total += len(document) + len(JOIN)
        if total > characters and document.strip():
            return index + 1
    return len(documents)
