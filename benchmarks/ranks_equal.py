"""How far the result of torchrun is from that of one process, and how long each takes.

    python -m benchmarks.ranks_equal --model ../shared/models/ref-llama-7m \
        --calibration '../shared/data/c4/c4_sample.jsonl@train[:900]' --output FILE

Layouts are written PROCESSESxTHREADS; all are compared with the first. Own text is drawn by chance
from sums, so layouts of other threads may write another text: `same_text` says. Differences are the
largest of all, relative: of a scale to itself, of a tensor's rows to its norm.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.common.models import MODEL, demo_texts
from benchmarks.common.output import (
    add_output_options,
    check_place,
    command_of,
    new_parser,
    print_table,
    run_command,
    working_folder,
    write,
)
from benchmarks.ranks_memory import compress
from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.checkpoint.read.source import WEIGHTS_FILE
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.record import new_record

SMOKE = {"sequences": 16, "sequence_length": 64, "rounds": 1}


def layouts_of(text: str) -> list[tuple[int, int]]:
    """Processes and threads of each layout, such as `1x2,2x1`; InputError for anything else."""
    found = []
    for word in text.split(","):
        processes, _, threads = word.partition("x")
        if not (processes.isdigit() and threads.isdigit() and int(processes) and int(threads)):
            raise InputError(f"layout {word!r} is not PROCESSESxTHREADS: write it as 2x1")
        found.append((int(processes), int(threads)))
    return found


def compare(first: Path, other: Path) -> dict[str, Any]:
    """What differs between two checkpoints of the same command."""
    one, two = (load_plan(folder / PLAN_FILE) for folder in (first, other))
    found: dict[str, Any] = {
        "units_differing": int((one.mask != two.mask).sum()),
        "same_text": _text(one.provenance) == _text(two.provenance),
        "heldout_loss": _furthest(
            *(torch.tensor(list(plan.provenance["losses"].values())) for plan in (one, two))
        ),
    }
    if found["units_differing"]:
        return found
    scales = {"scales": (one.scales, two.scales)}
    if one.norm_scales is not None and two.norm_scales is not None:
        scales["norm_scales"] = (one.norm_scales, two.norm_scales)
    weights, others = (load_file(folder / WEIGHTS_FILE) for folder in (first, other))
    off = [
        float((others[name].float() - tensor.float()).norm() / tensor.float().norm())
        for name, tensor in weights.items()
    ]
    return found | {name: _furthest(*pair) for name, pair in scales.items()} | {"weights": max(off)}


def _text(provenance: dict[str, Any]) -> str:
    return str(provenance["calibration"]["token_ids_sha256"])


def _furthest(expected: Tensor, found: Tensor) -> float:
    """The largest relative difference between two tensors; zeros must be equal."""
    off = (found - expected).abs()
    return float(torch.where(off == 0, off, off / expected.abs()).max())


def measure(
    config: CompressConfig, layouts: Sequence[tuple[int, int]], work: Path
) -> Iterator[dict[str, Any]]:
    """A row for each layout: seconds of stages, peak bytes, and what differs from the first."""
    for number, (processes, threads) in enumerate(layouts):
        made = work / f"{number}"
        row: dict[str, Any] = {"processes": processes, "threads": threads}
        row |= compress(config, processes, made, threads=threads)
        if number:
            row["against_first"] = compare(work / "0", made)
            shutil.rmtree(made)
        print_table(_lines(row))
        yield row


def _lines(row: dict[str, Any]) -> list[tuple[str, str]]:
    stages = ", ".join(f"{name} {took:.0f}" for name, took in row["stage_seconds"].items())
    lines = [
        (f"{row['processes']} x {row['threads']} threads", f"{row['seconds']:.0f} s ({stages})")
    ]
    return lines + [
        (f"  {name}", f"{off:.2g}") for name, off in row.get("against_first", {}).items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", type=Path, help="folder of a dense model (default: embedded)")
    parser.add_argument(
        "--calibration",
        action="append",
        help="text, as for `compress`; self=0 leaves out the model's own (default: this project)",
    )
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--sequences", type=int, default=CompressConfig.sequences)
    parser.add_argument("--sequence-length", type=int, default=CompressConfig.sequence_length)
    parser.add_argument("--layouts", default="1x1,2x1", help="the first is what others must equal")
    add_output_options(parser, "the embedded model and little text")
    options = parser.parse_args(arguments)
    check_place(options.output, "ranks_equal")
    layouts, command = layouts_of(options.layouts), command_of("ranks_equal", arguments)
    with working_folder("ranks_equal") as (folder, _):
        settings = settings_of(options)
        texts = options.calibration or [str(demo_texts(folder)[0])]
        config = CompressConfig(calibration=tuple(texts), **settings)
        settings["calibration"] = options.calibration or "demo"
        rows: list[dict[str, Any]] = []
        for row in measure(config, layouts, folder):
            rows.append(row)  # and what there is is written: a layout may take an hour
            write(options.output, new_record("ranks_equal", command, settings, layouts=rows))


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The compression's options, where they are not the defaults or may be chosen."""
    model = MODEL if options.smoke or options.model is None else options.model
    return {
        "model": str(model),
        "keep": options.keep,
        "device": "cpu",
        "sequences": options.sequences,
        "sequence_length": options.sequence_length,
        **(SMOKE if options.smoke else {}),
    }


if __name__ == "__main__":
    run_command(main)
