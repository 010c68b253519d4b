"""Kill commands at random moments of every stage, and let each go on: `python -m tests.kills`.

The same command then runs again, `compress` with `--resume`. It must end with exit code 0 and with
the checkpoint of a run that nobody killed, byte for byte but for the seconds that it states.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.card.model_card import intact_plan
from grasp_deploy.checkpoint.plan import PLAN_FILE
from grasp_deploy.files.tensors import checksum
from grasp_deploy.healing.heal import check_installed
from tests.crash_runner import Run, forker
from tests.tiny import save_tiny

PRINTABLE = slice(32, 127)  # bytes
STATED = ("manifest.json", "plan.grasp", "metrics.jsonl")  # with seconds, or hashes of those
SEQUENCES = "sequences 64 --sequence-length 32 --device cpu"
STUDIES = "rounds=3 scale-epochs=1"
LEARNING = " ".join(f"--set {study}" for study in STUDIES.split())
COMPRESS = (
    f"compress {{at}}/model {LEARNING} --calibration {{at}}/text.txt --calibration-{SEQUENCES}"
)
COMMANDS = {  # `grasp` is of all methods the one with every stage
    "compress": f"{COMPRESS} --method grasp --keep 0.6",
    "family": f"{COMPRESS} --method grasp --keep 0.8,0.6",
    "bound": f"{COMPRESS} --max-loss 9 --set bound-step=0.3",
    "export": "export {at}/compress/out/plan.grasp --model {at}/model --shard-size 50KB",
    "heal": f"heal {{at}}/compress/out --steps 40 --rank 4 --data {{at}}/text.txt --{SEQUENCES}",
    "verify": "verify {at}/compress/out --json",
}
# Each stage: the command, the stage's name in its rows of progress, and its share of the kills.
STAGES = {
    "start-up": ("compress", "", 6),
    "own text": ("compress", "own-text", 4),
    "rounds": ("compress", "rounds", 6),
    "gates": ("compress", "gates", 6),
    "compensation": ("compress", "compensation", 8),
    "scales": ("compress", "scales", 8),
    "export of compress": ("compress", "export", 6),
    "a family's rounds": ("family", "rounds", 6),
    "a family's export": ("family", "export", 6),
    "the steps of a bound": ("bound", "scales", 6),
    "export": ("export", "export", 4),
    "healing": ("heal", "healing", 5),
    "verify": ("verify", "", 3),
}
MOST_SECONDS = 0.02  # from an event to the kill: longer than most steps of a tiny model


@torch.no_grad()
def written_by(model: PreTrainedModel, sequences: int, length: int) -> str:
    """Text, a token each character, that the model itself writes: on no other text is a model
    that learnt nothing worth coming close to, and the solved columns would not be kept."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(PRINTABLE.start, PRINTABLE.stop, (sequences, 1), generator=generator)
    while ids.shape[1] < length:
        chances = model(input_ids=ids).logits[:, -1, PRINTABLE].softmax(-1)
        following = torch.multinomial(chances, 1, generator=generator) + PRINTABLE.start
        ids = torch.cat([ids, following], 1)
    return "".join(map(chr, ids.flatten().tolist()))


@dataclass
class Runs:
    """Commands on a tiny model in a folder, and the events of each where nobody kills it."""

    folder: Path
    fork: Run
    events: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model = save_tiny("llama", self.folder / "model")
        (self.folder / "text.txt").write_text(written_by(model, sequences=64, length=32))

    def whole(self, name: str) -> Path:
        """The output of a command that nobody kills."""
        output = self.folder / name / "out"
        if name not in self.events:
            output.parent.mkdir()
            self.events[name] = self.run(name, output) or []
        return output

    def run(
        self, name: str, output: Path, kill_at: int | None = None, *more: str, after: float = 0.0
    ) -> list[str] | None:
        """Run a command, with more options; returns its events, or None if it was killed."""
        where = () if name == "verify" else ("--output", str(output))
        command = " ".join((COMMANDS[name].format(at=self.folder), *where, *more))
        folder = self.folder if name == "verify" else output.parent
        return self.fork(command, folder, kill_at, after)

    def kill(self, stage: str, output: Path, draw: random.Random) -> bool:
        """Kill a command at a random moment of a stage; False if it had ended before."""
        name, row, _ = STAGES[stage]
        self.whole(name)
        current, numbers = "", []
        for number, event in enumerate(self.events[name], 1):
            current = event or current
            numbers += [number] * (current == row)
        after = draw.uniform(1e-6, MOST_SECONDS)
        return self.run(name, output, draw.choice(numbers), after=after) is None

    def goes_on(self, stage: str, output: Path) -> str:
        """Run a killed command again; returns what is wrong with how it ends."""
        name, *_ = STAGES[stage]
        resume = ["--resume"] if COMMANDS[name].startswith("compress") else []
        if output.exists() and not resume:  # killed behind its end: its lock may be left
            output.with_name(".out.lock").unlink(missing_ok=True)
        else:
            self.run(name, output, None, *resume)
        return "" if name == "verify" else difference(output, self.whole(name))


def difference(made: Path, whole: Path) -> str:
    """What distinguishes a checkpoint from another one, or was left beside it; "" if nothing."""
    if left := sorted(path.name for path in made.parent.iterdir() if path != made):
        return f"{', '.join(left)} left"
    files, expected = contents(made), contents(whole)
    other = {name for name in files | expected if files.get(name) != expected.get(name)}
    return f"{', '.join(sorted(other))} differ" if other else ""


def contents(folder: Path) -> dict[str, object]:
    """Contents of a checkpoint by file name, without seconds; its manifest is true of it.

    Of a family those of each member, by its name.
    """
    if not (folder / PLAN_FILE).exists():
        return {path.name: path.is_dir() and contents(path) for path in folder.iterdir()}
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
    """Kill in every stage, print a line for each, and return the failures; `share` of all kills."""
    check_installed()
    failures, draw = [], random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="kills-") as folder, forker() as fork:
        runs, output = Runs(Path(folder), fork), Path(folder) / "killed" / "out"
        for stage, (_, _, kills) in STAGES.items():
            counts: Counter[str] = Counter()
            while counts["killed"] < max(1, round(kills * share)):
                shutil.rmtree(output.parent, ignore_errors=True)
                output.parent.mkdir()
                if not runs.kill(stage, output, draw):
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
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="Of all kills.")
    asked = parser.parse_args()
    wrong = campaign(asked.seed, asked.share)
    print("\n".join(wrong) or "all went on to the same checkpoint")
    sys.exit(bool(wrong))
