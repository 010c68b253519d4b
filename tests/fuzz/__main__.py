"""`python -m tests.fuzz`: damaged files and odd options against the command line.

A run ends well in exit code 0 with a checkpoint that verifies, or in exit code 2 with one line.
"""

from __future__ import annotations

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
    parser.add_argument("--only", choices=CASES, help="one class of damage")
    parser.add_argument("--show", action="store_true", help="print each run and its output")
    options = parser.parse_args()
    names = [options.only] if options.only else list(CASES)
    warm_up()
    began, faults = time.monotonic(), dict[str, list[str]]()
    figures: dict[str, Counter[str]] = {name: Counter() for name in names}
    try:
        with tempfile.TemporaryDirectory(prefix="fuzz-world-") as folder:
            world = make_world_once(Path(folder))
            for index in range(options.runs):
                if time.monotonic() - began > 60 * options.minutes:
                    break
                name, number = names[index % len(names)], options.seed + index // len(names)
                ended = fuzz_once(name, number, world, options.limit)
                figures[name][ended.fault.split(":")[0] or f"exit {ended.code}"] += 1
                again = f"--only {shlex.quote(name)} --seed {number} --runs 1 --show"
                if ended.fault:
                    faults.setdefault(ended.fault, []).append(again)
                if options.show or faults.get(ended.fault) == [again]:  # seen for the first time
                    print(f"{ended.fault!a}\n    {shlex.join(ended.arguments)!a}")
                    print(f"    again: {again}", flush=True)
                if options.show:
                    print(f"exit {ended.code}, {ended.seconds:.1f} s\n{ended.stdout!a}")
                    print(ended.stderr)
    finally:  # of an interrupted run too
        _print_figures(figures, time.monotonic() - began, faults)
    return 1 if faults else 0


def _print_figures(
    figures: dict[str, Counter[str]], seconds: float, faults: dict[str, list[str]]
) -> None:
    runs = sum(map(Counter.total, figures.values()))
    print(f"\n{runs} runs in {seconds / 60:.1f} minutes")
    for name, counts in figures.items():
        print(f"{name:14} {counts.total():5}  ", end="")
        print(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))
    for fault, again in sorted(faults.items(), key=lambda item: -len(item[1])):
        print(f"{len(again):5} x {fault!a}  ({again[0]})")


if __name__ == "__main__":
    sys.exit(main())
