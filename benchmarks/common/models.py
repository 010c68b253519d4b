"""The models of a study: a dense one, and its pruned forms at several budgets."""

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.prepare import prepare
from grasp_deploy.compression.result import finished_plan
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.compression.synthesize import synthesize
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.rules import own_texts
from grasp_deploy.data import calibration_sources
from grasp_deploy.demo.run import MODEL as MODEL
from grasp_deploy.demo.run import write_text
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sha256

SEQUENCE_LENGTH, BATCH_SIZE = 256, 4
NO_OWN = "self=0"


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a dense model and the text that it is calibrated on."""
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of a dense model")
    parser.add_argument(
        "--calibration",
        action="append",
        metavar="TEXT",
        help="text, alone unless self is named too; repeat; default: the embedded model's",
    )
    parser.add_argument("--calibration-split", help="rows of it, such as train[:900]")


def calibration_of(options: argparse.Namespace, work: Path) -> tuple[str, ...]:
    """The calibration text of a study: what --calibration names, and nothing beside it."""
    return alone(options.calibration or [str(demo_texts(work)[0])])


def calibration_hashes(settings: Mapping[str, Any]) -> list[str]:
    """SHA-256 of each local file that is calibrated on, of prompts too; others go by name."""
    sources = calibration_sources(settings["calibration"], settings["calibration_split"])
    paths = [Path((source.prompts or source).what) for source in sources if source.is_local]
    return [sha256(path) for path in paths if path.is_file()]


def alone(texts: Sequence[str]) -> tuple[str, ...]:
    """Texts to calibrate on without any of the model's own, unless one of them is."""
    return tuple(texts) if own_texts(texts) else (*texts, NO_OWN)


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of studies that compress a model themselves."""
    add_model_options(parser)
    parser.add_argument("--sequences", type=int, default=256, help="of 256 tokens")
    parser.add_argument("--work", type=Path, help="keep the pruned models in this folder")


@functools.cache  # writing them takes seconds
def demo_texts(work: Path) -> tuple[Path, Path]:
    """Calibration and held-out text of the embedded model, as files in a folder."""
    folder = work / "text"
    folder.mkdir(parents=True, exist_ok=True)
    return write_text(folder)


def pruned(options: argparse.Namespace, work: Path, keep: float, ffn_multiple: int = 1) -> Path:
    """The checkpoint of a budget, compressed now unless it is in the work folder already."""
    output = work / f"{options.model.name}-{keep:g}-multiple-{ffn_multiple}"
    config = CompressConfig(
        model=str(options.model),
        keep=keep,
        ffn_multiple=ffn_multiple,
        calibration=calibration_of(options, work),
        calibration_split=options.calibration_split,
        sequences=BATCH_SIZE if options.smoke else options.sequences,
        sequence_length=SEQUENCE_LENGTH,
        rounds=1 if options.smoke else CompressConfig.rounds,
        batch_size=BATCH_SIZE,
    )
    if not output.exists():
        print(f"compressing to {output.name}", file=sys.stderr)
        compress(config, output)
    elif finished_plan(RunOptions(output, resume=True, overwrite=True), prepare(config)) is None:
        raise InputError(
            f"{output} was made with other options, files or release: name another folder as "
            "--work, or delete it"
        )
    return output


def synthesized(config: Path, work: Path, keep: float, kv_keep: float | None = None) -> Path:
    """A folder with the config.json that a random mask makes of a dense one."""
    output = work / f"keep-{keep:g}"
    synthesize(CompressConfig(model=str(config), keep=keep), output, kv_keep=kv_keep)
    return output
