"""Every command asks what a folder holds before anything reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command import assert_refused, edit_json, grasp_deploy, needs_vllm
from tests.quantised import quantise

BASE = ("--model", "model")
TEXT = ("--data", "text.txt", "--device", "cpu")
COMMANDS: dict[str, tuple[str, ...]] = {
    "compress": ("compress", "model", "--calibration", "text.txt", "--keep", "0.6", "-o", "out"),
    "verify": ("verify", "pruned", *BASE),
    "export": ("export", "pruned/plan.grasp", *BASE, "-o", "out"),
    "heal": ("heal", "pruned", *BASE, "-o", "out", "--data", "text.txt"),
    "serve": ("serve", "model"),
    "up": ("up", "model", "--calibration", "text.txt", "--keep", "0.6"),
    "compare": ("evaluate", "compare", "model", *TEXT),
    "card": ("evaluate", "card", "pruned", *BASE, *TEXT),
    "tasks": ("evaluate", "tasks", "model", "--task-file", "items.jsonl"),
    **{f"bench {kind}": ("bench", kind, "model") for kind in ("memory", "throughput", "serve")},
    "bench kv": ("bench", "kv", "model", "--memory", "1GiB"),
}


@needs_vllm
@pytest.mark.parametrize("command", COMMANDS)
def test_an_adapter_beside_the_weights(command: str, tiny_folder: Path, pruned: Path) -> None:
    model = Path(shutil.copytree(tiny_folder, "model"))
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "somebody/else"}
    (model / "adapter_config.json").write_text(json.dumps(adapter))
    before = sorted(path.name for path in Path().iterdir())
    ended = grasp_deploy(*COMMANDS[command])
    assert_refused(ended, "model holds an adapter (adapter_config.json)", "merge_and_unload")
    assert sorted(path.name for path in Path().iterdir()) == before


def test_inspect_reads_a_config_that_others_would_hang_on(tiny_folder: Path, work: Path) -> None:
    model = Path(shutil.copytree(tiny_folder, "model"))
    edit_json(model / "config.json", num_labels=10**9)
    assert_refused(grasp_deploy("inspect", "model"), "num_labels", "it is 1000000000")


def test_a_checkpoint_that_was_quantised_afterwards(tiny_folder: Path, pruned: Path) -> None:
    quantise(pruned, Path("int8"))
    inspected = grasp_deploy("inspect", "int8")
    assert inspected.code == 0 and "quantised (compressed-tensors)" in inspected.stdout
    short = (*TEXT, "--sequence-length", "16", "--sequences", "8")
    assert grasp_deploy("evaluate", "compare", "int8", *short).code == 0
    output = ("-o", "out", "--data", "text.txt", "--model", tiny_folder)
    assert_refused(grasp_deploy("heal", "int8", *output), "is quantised (compressed-tensors)")
