"""The options of `evaluate card`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grasp_deploy.config.option import (
    DEVICE_HELP,
    DTYPE_HELP,
    SEQUENCE_LENGTH_HELP,
    Count,
    Length,
    option,
)


@dataclass(frozen=True)
class CardSettings:
    """The text and tasks that are measured, the same for both models."""

    data: tuple[str, ...] = option(
        "Text outside the calibration set: wikitext2, ptb, c4, a local file, or hf:NAME[:CONFIG]. "
        "May be repeated. Default: wikitext2 and c4, except the calibration text.",
        (),
        metavar="[NAME=]TEXT[@SPLIT]",
    )
    records: tuple[Path, ...] = option(
        "Accuracies: a record of `evaluate tasks --output` for the dense model and this "
        "checkpoint. May be repeated.",
        (),
        flag="--record",
        metavar="FILE",
    )
    model: str | None = option(
        "Hub id or folder of the dense model. Default: the base model in the plan.", None
    )
    column: str | None = option("Column that holds the text.", None)
    sequence_length: Length | None = option(SEQUENCE_LENGTH_HELP, None)
    sequences: Count = option("Sequences of each corpus.", 80)
    batch_size: Count = option("Sequences in a batch.", 1)
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(DTYPE_HELP, "auto")
