"""`python -m tests.fuzz`: damaged files and odd options against the command line.

A run ends well in exit code 0 with a checkpoint that verifies, or in exit code 2 with one line.
"""

import argparse
import importlib
import os
import pkgutil
import shlex
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # as the command line sets it before the import

import torch

import grasp_deploy
from tests.fuzz.cases import CASES
from tests.fuzz.runs import fuzz_once, make_world_once
from tests.fuzz.world import run_command

WARM = ("transformers.models.llama.modeling_llama", "peft", "lm_eval", "matplotlib.figure")
CHILDREN = ("child", "__main__")  # modules that are programs


def warm_up() -> None:
    """Import what commands import late, so that forks have it."""
    torch.set_num_threads(1)
    names = [
        module.name for module in pkgutil.walk_packages(grasp_deploy.__path__, "grasp_deploy.")
    ]
    ours = [name for name in names if not name.endswith(CHILDREN) and "vllm_plugin" not in name]
    for name in (*WARM, *ours):
        importlib.import_module(name)
    with redirect_stderr(StringIO()):
        run_command(["inspect", "./none"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first run")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of a run")
    parser.add_argument("--only", choices=CASES, help="one class of damage, each run printed")
    options = parser.parse_args()
    names = [options.only] if options.only else list(CASES)
    warm_up()
    began, faults, ends = time.monotonic(), Counter[str](), Counter[str]()
    try:
        with tempfile.TemporaryDirectory(prefix="fuzz-world-") as folder:
            world = make_world_once(Path(folder))
            for index in range(options.runs):
                if time.monotonic() - began > 60 * options.minutes:
                    break
                name, number = names[index % len(names)], options.seed + index // len(names)
                ended = fuzz_once(name, number, world, options.limit)
                ends[f"exit {ended.code}"] += 1
                faults[ended.fault] += bool(ended.fault)
                if options.only or (ended.fault and faults[ended.fault] == 1):
                    print(f"{ended.fault!a}\n    {shlex.join(ended.arguments)!a}")
                    print(f"    again: --only {shlex.quote(name)} --seed {number} --runs 1")
                if options.only:
                    print(f"exit {ended.code}, {ended.seconds:.1f} s\n{ended.stdout!a}")
                    print(ended.stderr)
                sys.stdout.flush()
    finally:  # of an interrupted run too
        print(f"{ends.total()} runs in {(time.monotonic() - began) / 60:.1f} minutes: {dict(ends)}")
        for fault, count in (+faults).most_common():
            print(f"{count:5} x {fault!a}")
    return 1 if +faults else 0


if __name__ == "__main__":
    sys.exit(main())
