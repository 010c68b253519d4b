"""Kill commands at random moments of every stage, and let each go on: `python -m tests.kills`.

Each kill is a SIGKILL from outside, at a random moment behind a random step of its stage. Then the
same command runs again, `compress` with `--resume`. It must end with exit code 0 and with the
checkpoint of a run that nobody killed, byte for byte but for the seconds that it states. Commands
run in forks of one process, so imports are paid once; start-up is killed in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import transformers.models.llama.modeling_llama  # noqa: F401  (before the forks)

from grasp_deploy.checkpoint.card.update import intact_plan
from grasp_deploy.cli.app import app
from grasp_deploy.compression import frozen_model
from grasp_deploy.files.tensors import checksum
from grasp_deploy.healing.heal import check_installed
from grasp_deploy.report import progress
from tests.cli.command import environment
from tests.compression.test_kills import written_by
from tests.tiny import save_tiny

STATED = ("manifest.json", "plan.grasp", "metrics.jsonl")  # with seconds, or hashes of those
STARTED = "started"  # the first row of every command
# Each stage: the command, the stage's name in the rows of progress, and its share of the kills.
STAGES = {
    "start-up": ("compress", "", 6),
    "rounds": ("compress", "rounds", 8),
    "gates": ("compress", "gates", 8),
    "swaps": ("compress", "swaps", 4),
    "compensation": ("compress", "compensation", 8),
    "scales": ("compress", "scales", 8),
    "export of compress": ("compress", "export", 6),
    "export": ("export", "export", 4),
    "healing": ("heal", "healing", 5),
    "verify": ("verify", STARTED, 3),
}


@dataclass
class Campaign:
    """Commands on a tiny model in a folder, and how they end when nobody kills them."""

    folder: Path
    seed: int
    commands: dict[str, list[str]] = field(init=False)
    rows: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # moments of its rows

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        model = save_tiny("llama", self.folder / "model")
        text = self.folder / "text.txt"
        text.write_text(written_by(model, blocks=64, length=32))
        short = ("--sequences", "64", "--sequence-length", "32", "--device", "cpu")
        studies = (
            "rounds=3",
            "criterion-sequences=24",
            "compensation-sequences=24",
            "swap-groups=1",
        )
        sets = [part for study in studies for part in ("--set", study)]
        dense, plan = str(self.folder / "model"), str(self.folder / "compress/out/plan.grasp")
        pruned, learning = str(self.folder / "compress/out"), ("--steps", "40", "--rank", "4")
        self.commands = {
            "compress": [
                "compress",
                dense,
                "--keep",
                "0.6",
                "--calibration",
                str(text),
                *short,
                *sets,
            ],
            "export": ["export", plan, "--model", dense, "--shard-size", "50KB"],
            "heal": ["heal", pruned, "--data", str(text), *short, *learning],
            "verify": ["verify", pruned, "--json"],
        }
        for name in self.commands:
            self.time_whole_run(name)

    def command(self, name: str, output: Path) -> list[str]:
        options = [] if name == "verify" else ["--output", str(output)]
        return [*self.commands[name], *options]

    def time_whole_run(self, name: str) -> None:
        """Run a command that nobody kills, into `NAME/out`, and note the moments of its rows."""
        (self.folder / name).mkdir()
        process, rows = start(self.command(name, self.folder / name / "out"), self.log)
        for row in rows:
            self.rows.setdefault((name, row.strip()), []).append(time.monotonic())
        assert ended(process) == 0, self.log.read_text()
        self.rows[name, STARTED].append(time.monotonic())  # its end

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def kill(self, stage: str, output: Path) -> bool:
        """Kill a command once at a random moment of a stage; False if it had ended before."""
        name, row_name, _ = STAGES[stage]
        arguments = self.command(name, output)
        if not row_name:
            process = real_process(arguments)
            time.sleep(self.random.uniform(0, self.seconds_to_start))
            process.kill()
            return process.wait() == -signal.SIGKILL
        moments = self.rows[name, row_name]
        number = 1 if row_name == STARTED else self.random.randint(1, len(moments))
        step_seconds = (moments[-1] - moments[0]) / max(1, len(moments) - 1)
        process_id, rows = start(arguments, self.log)
        for row in rows:
            number -= row.strip() == row_name
            if number == 0:
                time.sleep(self.random.uniform(0, step_seconds))
                break
        os.kill(process_id, signal.SIGKILL)
        rows.close()
        return ended(process_id) == -signal.SIGKILL

    def measure_start(self, output: Path) -> None:
        """Seconds of a process of its own until it has begun its work."""
        began, process = time.monotonic(), real_process(self.command("compress", output))
        while process.poll() is None and not output.with_name("out.partial").exists():
            time.sleep(0.02)
        self.seconds_to_start = time.monotonic() - began
        process.kill()
        process.wait()

    def goes_on(self, stage: str, output: Path) -> str:
        """Run a killed command again; returns what is wrong with how it ends."""
        name, *_ = STAGES[stage]
        resume = ["--resume"] if name == "compress" else []
        if output.exists() and not resume:  # killed behind its end: its lock may be left
            output.with_name(".out.lock").unlink(missing_ok=True)
        else:
            process, rows = start([*self.command(name, output), *resume], self.log)
            rows.read()
            if code := ended(process):
                return f"exit code {code}"
        if name == "verify":
            return ""
        if left := sorted(path.name for path in output.parent.iterdir() if path != output):
            return f"{', '.join(left)} left"
        made, whole = contents(output), contents(self.folder / name / "out")
        other = sorted(file for file in made | whole if made.get(file) != whole.get(file))
        return f"{', '.join(other)} differ" if other else ""


def start(arguments: list[str], log: Path) -> tuple[int, TextIO]:
    """Fork a command; returns its process id, and a stream of the stages of its progress rows."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        _work(arguments, writing, log)
    os.close(writing)
    return process, os.fdopen(reading)


def _work(arguments: list[str], writing: int, log: Path) -> None:
    """In the fork: run the command, and leave without the parent's clean-up."""

    def report(row: dict[str, Any]) -> None:
        os.write(writing, f"{row['stage']}\n".encode())

    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        progress.stage_bars = lambda *_: nullcontext(report)  # type: ignore[assignment]
        frozen_model.SAVE_EVERY_SECONDS = 0.0  # stages of a tiny model take less than the real 5
        report({"stage": STARTED})
        app(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def real_process(arguments: list[str]) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-m", "grasp_deploy", *arguments]
    return subprocess.Popen(command, env=environment(), stdout=quiet, stderr=quiet)


def contents(folder: Path) -> dict[str, object]:
    """Contents of a checkpoint by file name, without seconds; its manifest is true of it."""
    plan = intact_plan(folder)
    tensors = {"scores": plan.scores, "mask": plan.mask, "scales": plan.scales}
    rows = folder / "metrics.jsonl"
    metrics = [json.loads(row) for row in rows.read_text().splitlines()] if rows.exists() else []
    return {
        **{path.name: path.read_bytes() for path in folder.iterdir() if path.name not in STATED},
        "plan.grasp": checksum(tensors, json.dumps(without_seconds(plan.provenance))),
        "metrics.jsonl": without_seconds(metrics),
    }


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(v) for key, v in value.items() if key != "seconds"}
    return [without_seconds(v) for v in value] if isinstance(value, list) else value


def campaign(seed: int, share: float = 1.0) -> list[str]:
    """Kill in every stage, print a line for each, and return the failures; `share` of 60 kills."""
    check_installed()
    failures = []
    with tempfile.TemporaryDirectory(prefix="grasp-deploy-kills-") as folder:
        runs = Campaign(Path(folder), seed)
        output = Path(folder) / "killed" / "out"
        output.parent.mkdir()
        runs.measure_start(output)
        for stage, (_, _, kills) in STAGES.items():
            counts: Counter[str] = Counter()
            while counts["killed"] < max(1, round(kills * share)):
                shutil.rmtree(output.parent)
                output.parent.mkdir()
                if not runs.kill(stage, output):
                    counts["ended before"] += 1
                    assert counts["ended before"] < 20, f"{stage}: no kill hits it"
                    continue
                counts["killed"] += 1
                left = ", ".join(sorted(path.name for path in output.parent.iterdir()))
                wrong = runs.goes_on(stage, output)
                counts["went on"] += not wrong
                if wrong:
                    failures.append(f"{stage} (it left {left or 'nothing'}): {wrong}")
            print(stage, dict(counts), flush=True)
        if failures:
            print(runs.log.read_text()[-4000:], file=sys.stderr)
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="Of 60 kills in all.")
    asked = parser.parse_args()
    wrong = campaign(asked.seed, asked.share)
    print("\n".join(wrong) or "all went on to the same checkpoint")
    sys.exit(bool(wrong))
