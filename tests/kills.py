"""Commands on a tiny model that tests kill, and what tells two checkpoints apart."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.card.model_card import intact_plan
from grasp_deploy.checkpoint.plan import PLAN_FILE
from grasp_deploy.files.tensors import checksum
from tests.crash_runner import Run
from tests.tiny import save_tiny

PRINTABLE = slice(32, 127)  # bytes
STATED = ("manifest.json", "plan.grasp", "metrics.jsonl")  # with seconds, or hashes of those
STUDIES = "rounds=3 scale-epochs=1"
LEARNING = " ".join(f"--set {study}" for study in STUDIES.split())
TEXT = "--calibration {at}/text.txt --calibration-sequences 64 --sequence-length 32"
COMPRESS = f"compress {{at}}/model {LEARNING} {TEXT} --device cpu"
COMMANDS = {  # `grasp` is of all methods the one with every stage
    "compress": f"{COMPRESS} --method grasp --keep 0.6 --recover 4k",
    "family": f"{COMPRESS} --method grasp --keep 0.8,0.6",
    "bound": f"{COMPRESS} --max-loss 9 --set bound-step=0.3",
    "cut": f"{COMPRESS} --method progressive --keep 0.6",
    "heal": f"heal {{at}}/cut/out {TEXT} --calibration self=0 --recover 4k --device cpu",
}


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
        self, name: str, output: Path, kill_at: int | None = None, *more: str
    ) -> list[str] | None:
        """Run a command, with more options; returns its events, or None if it was killed."""
        command = " ".join((COMMANDS[name].format(at=self.folder), "--output", str(output), *more))
        return self.fork(command, output.parent, kill_at)


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
