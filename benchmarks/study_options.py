"""What all studies of quality take on their command line, and what it means."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from exports import demo_texts

from grasp_deploy.data import TextSource, evaluation_source
from grasp_deploy.demo.run import MODEL
from grasp_deploy.errors import InputError

Number = TypeVar("Number")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What all studies of quality take."""
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of a dense model")
    parser.add_argument("--calibration", help="text; default: the embedded model's")
    parser.add_argument("--calibration-split", help="rows of it, such as train[:900]")
    parser.add_argument(
        "--evaluate", action="append", metavar="[NAME=]TEXT[@SPLIT]", help="held-out text; repeat"
    )
    parser.add_argument("--keep", default="0.8,0.6,0.5,0.4", help="budgets")
    parser.add_argument("--seeds", default="0", help="such as 0,1,2")
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--evaluation-blocks", type=int, default=80)
    parser.add_argument("--smoke", action="store_true", help="the embedded model, in seconds")
    parser.add_argument("--output", type=Path, help="where to write the JSON record")


def keeps_and_seeds(options: argparse.Namespace) -> tuple[list[float], list[int]]:
    """The budgets and seeds of a study; a smoke run takes one budget."""
    keeps = "0.6" if options.smoke else options.keep
    return _numbers("--keep", keeps, float), _numbers("--seeds", options.seeds, int)


def _numbers(flag: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} {text!r} is no list of numbers: write them a,b,c") from None
    if len(set(numbers)) < len(numbers):
        raise InputError(f"{flag} {text} names one twice: name each once")
    return numbers


def settings_of(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The options of the config that all variants share."""
    settings = {
        "model": str(options.model),
        "calibration": [options.calibration or str(demo_texts(work)[0])],
        "calibration_split": options.calibration_split,
        "sequences": options.sequences,
        "sequence_length": options.sequence_length,
        "batch_size": options.batch_size,
    }
    if options.smoke:
        settings |= {"sequences": 8, "sequence_length": 64, "batch_size": 4}
    return settings


def corpora_of(options: argparse.Namespace, work: Path) -> list[TextSource]:
    """The held-out text: what --evaluate names, or the embedded model's."""
    if options.evaluate:
        return parsed("--evaluate", options.evaluate)
    return [TextSource(str(demo_texts(work)[1]), name="held-out")]


def parsed(flag: str, texts: Sequence[str], evaluates: bool = True) -> list[TextSource]:
    """Corpora of an option that may be repeated; InputError if two have the same name."""
    corpora = [evaluation_source(text, option=flag, evaluates=evaluates) for text in texts]
    if len({corpus.label for corpus in corpora}) < len(corpora):
        raise InputError(f"two {flag} have the same name: give each its own")
    return corpora
