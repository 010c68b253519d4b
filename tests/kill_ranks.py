"""Kill random processes of torchrun at random times, and let any number go on.

    python -m tests.kill_ranks --kills 10

Each run is killed once and goes on with `--resume` on one to three processes. It must end with the
mask of a run in one process that nobody killed, and its scales within 1e-4.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan
from tests.cli.command import environment
from tests.compression.test_ranks import children_of, compressed, ended, torchrun
from tests.tiny import save_tiny


def in_one_process(model: Path, output: Path) -> Plan:
    """The plan of a run that nobody kills."""
    words = compressed(model, output)
    subprocess.run([sys.executable, "-m", *words], env=environment(), check=True, timeout=300)
    return load_plan(output / PLAN_FILE)


def killed_at(seconds: float, model: Path, output: Path, dice: random.Random) -> str:
    """Kill a process of a run after so many seconds of work; what it was doing by then."""
    run = torchrun(dice.choice((2, 3)), *compressed(model, output))
    partial = output.with_name(f"{output.name}.partial")
    while not partial.exists() and run.poll() is None:
        time.sleep(0.05)
    time.sleep(seconds)
    if run.poll() is not None:
        return "ended before"
    saved = sorted(path.stem for path in partial.glob("[a-z]*.safetensors"))
    began = time.monotonic()
    os.kill(dice.choice(children_of(run.pid)), signal.SIGKILL)
    code, printed = ended(run)
    said = printed.count("stopped: ")
    seconds = time.monotonic() - began
    before = ", ".join(saved) or "nothing"
    return f"had saved {before}; exit code {code} in {seconds:.1f} s, {said} line"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-seconds", type=float, default=8.0, help="from the first file on")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        save_tiny("llama", folder / "model")
        expected = in_one_process(folder / "model", folder / "alone")
        for number in range(options.kills):
            output = folder / "shared"
            happened = killed_at(
                dice.uniform(0, options.most_seconds), folder / "model", output, dice
            )
            processes = dice.choice((1, 2, 3))
            words = compressed(folder / "model", output, "--resume")
            code, printed = ended(torchrun(processes, *words))
            assert code == 0, printed
            found = load_plan(output / PLAN_FILE)
            assert torch.equal(found.mask, expected.mask), f"another mask: seed {options.seed}"
            torch.testing.assert_close(found.scales, expected.scales, rtol=1e-4, atol=0)
            print(f"{number + 1}: {happened}; {processes} went on to the same mask", flush=True)
            shutil.rmtree(output)


if __name__ == "__main__":
    main()
