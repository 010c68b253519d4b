"""Documents that are measured one by one, each tokenised with nothing before it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from grasp_deploy.data.blocks import read_documents
from grasp_deploy.data.source import TextSource
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Documents:
    """The tokens `(T,)` int64 of each document, and where they come from."""

    token_ids: list[torch.Tensor]
    source: TextSource
    skipped: int  # too short to predict anything in

    def as_dict(self) -> dict[str, Any]:
        """Provenance for records; equal hashes mean that two results saw the same tokens."""
        digest = hashlib.sha256()
        for ids in self.token_ids:
            digest.update(len(ids).to_bytes(8, "little") + ids.numpy().tobytes())
        return {
            "source": self.source.what,
            "split": self.source.split,
            "column": self.source.column,
            "documents": len(self.token_ids),
            "documents_skipped": self.skipped,
            "token_ids_sha256": digest.hexdigest(),
        }


def read_token_documents(
    tokenizer: PreTrainedTokenizerBase, source: TextSource, documents: int | None
) -> Documents:
    """The first `documents` (None: all) of a source that have two tokens or more.

    No special tokens are added. Raises InputError as `read_documents` does, and if no document is
    long enough.
    """
    kept: list[torch.Tensor] = []
    skipped = 0
    for text in read_documents(source, tokenizer):
        if documents is not None and len(kept) == documents:
            break
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) < 2:
            skipped += 1
            continue
        kept.append(torch.tensor(ids, dtype=torch.int64))
    if not kept:
        raise InputError(
            f"no document of {source.what} has two tokens: nothing can be predicted; give other "
            "text"
        )
    return Documents(kept, source, skipped)
