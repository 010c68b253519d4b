"""Options that the benches share, and how lists of numbers are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.options import Device as Device
from grasp_deploy.cli.options import Json as Json
from grasp_deploy.errors import InputError

LONGEST_DIGITS = 18  # of a number; of some thousands of digits Python makes none at all

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help="Hub ids or folders, dense or pruned; the first is what the others are compared with.",
        show_default=False,
    ),
]
RandomWeights = Annotated[
    bool,
    typer.Option(
        "--random-weights",
        help="Fill the models with random weights; a config.json is then all that is needed.",
    ),
]
Repetitions = Annotated[
    int, typer.Option("--repetitions", min=1, help="How often each point is measured.")
]
Dtype = Annotated[
    str, typer.Option(help="auto, float32, bfloat16 or float16; auto: that of the weights.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of random tokens and random weights.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="JSON file to write the record to.", show_default=False),
]


def int_list(text: str, flag: str) -> list[int]:
    """The positive whole numbers in `1,2,4`; InputError if it is no such list or repeats one."""
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not _is_positive(part)]
    if wrong:
        raise InputError(
            f"{flag} {text!r:.60} has {wrong[0]!r:.40} where a positive whole number below 10^18 "
            "belongs: write it like 1,2,4"
        )
    numbers = [int(part) for part in parts]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"{flag} {text!r} names a number twice: name each once")
    return numbers


def _is_positive(part: str) -> bool:
    """Whether it is a positive whole number that any counter holds."""
    return part.isascii() and part.isdigit() and 0 < len(part.lstrip("0")) <= LONGEST_DIGITS
