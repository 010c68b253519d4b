"""The options of `heal`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from grasp_deploy.config.option import (
    DEVICE_HELP,
    DTYPE_HELP,
    LARGEST_NUMBER,
    Count,
    Length,
    Seed,
    check_fields,
    option,
)
from grasp_deploy.errors import InputError

MINUTES = 10.0
Positive = Annotated[float, Meta(gt=0, le=LARGEST_NUMBER)]
Rank = Annotated[int, Meta(ge=1, le=4096)]


@dataclass(frozen=True)
class HealConfig:
    """All options of a healing. With `minutes` the result also depends on the machine's speed."""

    calibration: str = option(
        "Text to learn from: wikitext2, ptb, c4, a local file, or hf:NAME[:CONFIG].", flag="--data"
    )
    calibration_split: str | None = option(
        "Rows to use, such as 'train[:900]'.", None, flag="--split"
    )
    calibration_column: str | None = option("Column that holds the text.", None, flag="--column")
    sequences: Count = option("Number of sequences.", 512)
    sequence_length: Length = option("Tokens in a sequence.", 512)
    minutes: Positive = option("Minutes of learning; loading comes on top.", MINUTES)
    steps: Count | None = option(
        "Instead of --minutes: steps of learning, for the same result on every run.", None
    )
    rank: Rank = option("Rank of the LoRA adapters.", 32)
    learning_rate: Positive = option("Initial AdamW learning rate (cosine decay).", 1e-3)
    batch_size: Count = option("Sequences in a step.", 2)
    seed: Seed = option("Seed of the order of sequences and of the adapters.", 0)
    device: str = option(DEVICE_HELP, "auto")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(DTYPE_HELP, "auto")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.steps is not None and self.minutes != MINUTES:
            raise InputError("--minutes and --steps both say when to end: give one of them")
