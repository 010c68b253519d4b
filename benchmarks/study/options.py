"""The options that all studies of quality share."""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.common.models import add_model_options, calibration_of, demo_texts
from grasp_deploy.config.option import number_list
from grasp_deploy.data import TextSource, evaluation_source
from grasp_deploy.errors import InputError

SMOKE_SETTINGS = {"sequences": 8, "sequence_length": 64, "batch_size": 4}


def add_study_options(parser: argparse.ArgumentParser, keep: str) -> None:
    """Add model, texts, budgets (`keep` by default), seeds and sizes."""
    add_model_options(parser)
    parser.add_argument(
        "--evaluate", action="append", metavar="[NAME=]TEXT[@SPLIT]", help="held-out; repeat"
    )
    parser.add_argument("--evaluation-blocks", type=int, default=80)
    parser.add_argument("--keep", default=keep, help="budgets, such as 0.8,0.5")
    parser.add_argument("--seeds", default="0", help="such as 0,1,2")
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=1)


def keeps_and_seeds(options: argparse.Namespace) -> tuple[list[float], list[int]]:
    """The budgets and seeds of a study; a smoke run takes one budget."""
    keeps = "0.6" if options.smoke else options.keep
    return list(number_list(keeps, "--keep", float)), list(
        number_list(options.seeds, "--seeds", int)
    )


def settings_of(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The options of the config that all variants share."""
    return {
        "model": str(options.model),
        "calibration": calibration_of(options, work),
        "calibration_split": options.calibration_split,
        "sequences": options.sequences,
        "sequence_length": options.sequence_length,
        "batch_size": options.batch_size,
        **(SMOKE_SETTINGS if options.smoke else {}),
    }


def corpora_of(options: argparse.Namespace, work: Path) -> list[TextSource]:
    """The held-out text that --evaluate names, or the embedded model's."""
    if options.evaluate:
        sources = [evaluation_source(text, option="--evaluate") for text in options.evaluate]
        if len({source.label for source in sources}) < len(sources):
            raise InputError("two --evaluate have the same name: give each its own")
        return sources
    return [TextSource(str(demo_texts(work)[1]), name="held-out")]
