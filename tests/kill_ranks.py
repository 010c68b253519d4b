"""Kill random processes of torchrun at random times, and go on.

    python -m tests.kill_ranks --kills 10

Each run of a tiny model is killed once and goes on with `--resume` on one to three processes, to
the mask of a run in one process that nobody killed and its scales within 1e-4.
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
from pathlib import Path

import torch

from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from tests.compression.test_ranks import children_of, compressed, ended, torchrun
from tests.tiny import save_tiny


def check_close(expected: Path, found: Path) -> None:
    one, two = (load_plan(folder / PLAN_FILE) for folder in (expected, found))
    assert torch.equal(one.mask, two.mask), "another mask"
    torch.testing.assert_close(two.scales, one.scales, rtol=1e-4, atol=0)


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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-seconds", type=float, default=8.0, help="from the first file on")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        model, alone, output = (folder / name for name in ("model", "alone", "shared"))
        save_tiny("llama", model)
        began = time.monotonic()
        code, printed = ended(torchrun(1, *compressed(model, alone)))
        assert code == 0, printed
        print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
        for number in range(options.kills):
            run = torchrun(dice.choice((2, 3)), *compressed(model, output))
            partial = output.with_name(f"{output.name}.partial")
            happened = killed_at(dice.uniform(0, options.most_seconds), run, partial, dice)
            processes = dice.choice((1, 2, 3))
            if happened != "ended before":
                again = torchrun(processes, *compressed(model, output, "--resume"))
                code, printed = ended(again)
                assert code == 0, printed
                happened += f"; {processes} went on"
            check_close(alone, output)
            print(f"{number + 1}: {happened} to the same", flush=True)
            shutil.rmtree(output)


if __name__ == "__main__":
    main()
