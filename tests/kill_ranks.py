"""Kill random processes of torchrun at random times, and go on.

    python -m tests.kill_ranks --kills 10
    python -m tests.kill_ranks --kills 10 --large --most-seconds 120

Each run is killed once and goes on with `--resume`. A tiny model goes on on one to three processes,
to the mask of a run in one process that nobody killed and its scales within 1e-4. The large one has
1.2 billion parameters on two processes, and must end in the same bits as undisturbed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.common.models import demo_texts
from benchmarks.ranks_memory import SIZES, config_of, write_model
from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.checkpoint.read.source import WEIGHTS_FILE
from grasp_deploy.files.disk import sha256
from tests.compression.test_ranks import children_of, compressed, ended, torchrun
from tests.tiny import save_tiny

MOST_SECONDS = 1800.0  # of a run of the large model


@dataclass(frozen=True)
class Case:
    """What is compressed, on how many processes, and when a result is right."""

    words: Callable[..., tuple[str, ...]]
    undisturbed: int
    processes: tuple[int, ...]
    check: Callable[[Path, Path], None]


def tiny(folder: Path) -> Case:
    save_tiny("llama", folder / "model")

    def words(output: Path, *more: str) -> tuple[str, ...]:
        return compressed(folder / "model", output, *more)

    return Case(words, 1, (1, 2, 3), check_close)


def large(folder: Path) -> Case:
    """The model and options of `benchmarks.ranks_memory`, on shorter sequences."""
    model, options = write_model(folder / "model", SIZES), folder / "config.json"
    config = replace(config_of(model, demo_texts(folder)[0]), sequence_length=64)
    options.write_text(config.to_json(), encoding="utf-8")

    def words(output: Path, *more: str) -> tuple[str, ...]:
        command = ("grasp_deploy", "compress", "--config", str(options))
        return (*command, "--output", str(output), *more)

    return Case(words, 2, (2,), check_equal)


def check_close(expected: Path, found: Path) -> None:
    one, two = (load_plan(folder / PLAN_FILE) for folder in (expected, found))
    assert torch.equal(one.mask, two.mask), "another mask"
    torch.testing.assert_close(two.scales, one.scales, rtol=1e-4, atol=0)


def check_equal(expected: Path, found: Path) -> None:
    assert sha256(expected / WEIGHTS_FILE) == sha256(found / WEIGHTS_FILE), "other weights"


def killed_at(
    seconds: float, run: subprocess.Popen[str], partial: Path, dice: random.Random
) -> str:
    """Kill a process of a run after so many seconds of work; what it was doing by then."""
    while not partial.exists() and run.poll() is None:
        time.sleep(0.05)
    time.sleep(seconds)
    if run.poll() is not None:
        return "ended before"
    saved = sorted(path.stem for path in partial.glob("[a-z]*.safetensors"))
    began = time.monotonic()
    os.kill(dice.choice(children_of(run.pid)), signal.SIGKILL)
    code, printed = ended(run)
    took, said = time.monotonic() - began, printed.count("stopped: ")
    before = ", ".join(saved) or "nothing"
    return f"{seconds:.0f} s, had saved {before}; exit code {code} in {took:.1f} s, {said} line"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--large", action="store_true", help="1.2 billion parameters")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-seconds", type=float, default=8.0, help="from the first file on")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        case = (large if options.large else tiny)(folder)
        alone, output = folder / "alone", folder / "shared"
        began = time.monotonic()
        code, printed = ended(torchrun(case.undisturbed, *case.words(alone)), MOST_SECONDS)
        assert code == 0, printed
        print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
        for number in range(options.kills):
            run = torchrun(max(2, dice.choice(case.processes)), *case.words(output))
            partial = output.with_name(f"{output.name}.partial")
            happened = killed_at(dice.uniform(0, options.most_seconds), run, partial, dice)
            processes = dice.choice(case.processes)
            if happened != "ended before":
                again = torchrun(processes, *case.words(output, "--resume"))
                code, printed = ended(again, MOST_SECONDS)
                assert code == 0, printed
                happened += f"; {processes} went on"
            case.check(alone, output)
            print(f"{number + 1}: {happened} to the same", flush=True)
            shutil.rmtree(output)


if __name__ == "__main__":
    main()
