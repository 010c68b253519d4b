"""The options of `evaluate perplexity`."""

from __future__ import annotations

from dataclasses import dataclass

from grasp_deploy.config.option import (
    DEVICE_HELP,
    DTYPE_HELP,
    SEQUENCE_LENGTH_HELP,
    Count,
    Length,
    option,
)


@dataclass(frozen=True)
class PerplexitySettings:
    """The text, and how it is cut and scored."""

    data: str = option("wikitext2, ptb, c4, a local file, or hf:NAME[:CONFIG].")
    split: str | None = option("Rows to use, such as 'train[900:]'.", None)
    column: str | None = option("Column that holds the text, or chats as lists of messages.", None)
    sequence_length: Length | None = option(SEQUENCE_LENGTH_HELP, None)
    sequences: Count = option("Sequences, or documents with --per-document.", 80)
    stride: Count | None = option(
        "Slide a window of --sequence-length by this many tokens and score only those. Default: "
        "no overlap.",
        None,
    )
    per_document: bool = option("Score each document by itself instead of running text.", False)
    batch_size: Count = option("Sequences in a batch.", 1)
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(DTYPE_HELP, "auto")
