"""`evaluate card`: from the command to the model card, and one line for bad input."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy import load
from grasp_deploy.checkpoint.card.quality_verdict import quality_verdict
from grasp_deploy.checkpoint.read.loading import load_tokenizer
from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.files.record import new_record
from tests.cli.command import Ended, assert_refused, grasp_deploy, tree
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval, write_items
from tests.tiny import save_tiny

BLOCKS, TOKENS = 6, 64
SMALL = ("--sequences", str(BLOCKS), "--sequence-length", str(TOKENS), "--device", "cpu")
TEXT = "Ten jugs of quartz vexed the brown dwarf, who milked a fox by night. " * 100


def card(*arguments: str | Path) -> Ended:
    return grasp_deploy("evaluate", "card", *arguments, *SMALL)


@pytest.fixture
def checkpoint(demo_checkpoint: Path, work: Path) -> Path:
    """The demo model's checkpoint, to be changed."""
    return Path(shutil.copytree(demo_checkpoint, work / "smaller"))


def task_record(path: Path, *models: Path, right: dict[str, list[int]]) -> Path:
    """A record of one task of two choices, with which answers of which model were right."""
    chosen = bench_models([str(model) for model in models])
    cells = [
        {
            "model": model.name,
            "task": "piqa",
            "metric": "acc",
            "accuracy": sum(right[model.name]) / len(right[model.name]),
            "standard_error": 0.05,
            "metrics": {},
            "num_fewshot": 0,
            "truncated": 0,
            "prompts_sha256": "0",
            "items": [
                {"item": i, "acc": float(value), "loglikelihoods": [-1.0, -2.0]}
                for i, value in enumerate(right[model.name])
            ],
        }
        for model in chosen
    ]
    described = [{**one.as_dict(), "weight_hashes": file_hashes(one.path)} for one in chosen]
    record = new_record("tasks", [], {}, models=described, cells=cells)
    path.write_text(json.dumps(record))
    return path


def block_losses(folder: Path, file: Path) -> torch.Tensor:
    """The mean loss of the tokens of each block but its first, `(BLOCKS,)` float64."""
    rows = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    ids = load_tokenizer(folder)("\n\n".join(rows), add_special_tokens=False)["input_ids"]
    blocks = torch.tensor(ids[: BLOCKS * TOKENS]).view(BLOCKS, TOKENS)
    with torch.no_grad():
        chances = load(folder)(input_ids=blocks).logits[:, :-1].double().log_softmax(-1)
    return -chances.gather(-1, blocks[:, 1:, None]).mean((1, 2))


def test_from_the_command_to_the_card(
    checkpoint: Path, demo_model: Path, demo_text: tuple[Path, Path], work: Path
) -> None:
    right = {"model": [1] * 90 + [0] * 10, "smaller": [1] * 70 + [0] * 30}
    record = task_record(work / "tasks.json", demo_model, checkpoint, right=right)
    data = ("--data", f"docs={demo_text[1]}@train", "--data", demo_text[0], "--record", record)
    ended = card(checkpoint, *data, "--json")
    assert ended.code == 0, ended.stderr
    quality: dict[str, Any] = json.loads(ended.stdout)
    assert quality == json.loads((checkpoint / "quality.json").read_text())
    docs, calibration = quality["corpora"]
    assert (docs["name"], docs["source"], docs["split"]) == ("docs", "heldout.jsonl", "train")
    assert [docs["calibrated_on"], calibration["calibrated_on"]] == [False, True]
    assert docs["tokens"] == BLOCKS * (TOKENS - 1)
    losses = [block_losses(folder, demo_text[1]) for folder in (demo_model, checkpoint)]
    by_hand = [math.exp(of_model.mean().item()) for of_model in losses]
    told = [docs[name]["perplexity"] for name in ("dense", "pruned")]
    assert told == pytest.approx(by_hand, rel=1e-4)
    assert docs["excess_loss"] == pytest.approx(math.log(by_hand[1] / by_hand[0]), abs=1e-3)
    spread = (losses[1] - losses[0]).std().item()
    assert docs["excess_error"] == pytest.approx(spread / math.sqrt(BLOCKS), rel=1e-3)
    (piqa,) = quality["tasks"]
    assert (piqa["chance"], piqa["change"]) == (0.5, pytest.approx(-0.2))
    assert str(demo_text[1].parent) not in (checkpoint / "quality.json").read_text()

    text = (checkpoint / "README.md").read_text()
    verdict = quality["verdict"]
    assert verdict == quality_verdict([docs], [piqa])
    assert f"**{verdict['outcome'].capitalize()}**: " in text
    assert verdict["sentence"].removeprefix(verdict["outcome"]) in text
    assert f"| docs (train) | {docs['tokens']} in sequences of {TOKENS} | {told[0]:,.2f} |" in text
    assert "| calibration.jsonl† |" in text and "| piqa (acc) | 100 | 50.0 | 90.0 ± 5.0 |" in text

    said = card(checkpoint, *data)
    assert said.code == 0, said.stderr
    assert verdict["sentence"] in said.stdout and "docs (train)" in said.stdout
    assert json.loads((checkpoint / "quality.json").read_text()) == quality
    verified = grasp_deploy("verify", checkpoint)
    assert verified.code == 0, verified.stdout
    assert "quality.json" in json.loads((checkpoint / "manifest.json").read_text())["sha256"]


def test_calibration_text_under_another_name_does_not_count(
    checkpoint: Path, demo_text: tuple[Path, Path], work: Path
) -> None:
    shutil.copyfile(demo_text[0], work / "other.jsonl")
    ended = card(checkpoint, "--data", "mine=other.jsonl", "--data", demo_text[1], "--json")
    assert ended.code == 0, ended.stderr
    quality = json.loads(ended.stdout)
    mine, heldout = quality["corpora"]
    assert (mine["calibrated_on"], mine["calibrated_on_share"]) == (True, 1.0)
    assert not heldout["calibrated_on"] and heldout["calibrated_on_share"] < 0.01
    assert quality["verdict"]["sentence"].count("on mine") == 0
    assert "| mine† |" in (checkpoint / "README.md").read_text()


def test_the_folder_loads_as_before(checkpoint: Path, demo_text: tuple[Path, Path]) -> None:
    tokens = torch.arange(40).view(2, 20)
    before = load(checkpoint)(input_ids=tokens).logits
    assert card(checkpoint, "--data", demo_text[1]).code == 0
    assert torch.equal(load(checkpoint)(input_ids=tokens).logits, before)


@needs_lm_eval
def test_a_record_of_evaluate_tasks(pruned: Path, tiny_folder: Path, work: Path) -> None:
    (work / "other.txt").write_text(TEXT)
    items = write_items(work)["query"]
    ran = grasp_deploy(
        *("evaluate", "tasks", tiny_folder, pruned, "--task-file", items, "-o", "tasks.json")
    )
    assert ran.code == 0, ran.stderr
    ended = card(pruned, "--data", "other.txt", "--record", "tasks.json", "--json")
    assert ended.code == 0, ended.stderr
    cells = json.loads((work / "tasks.json").read_text())["cells"]
    (row,) = json.loads(ended.stdout)["tasks"]
    assert (row["task"], row["items"]) == ("query", 12)
    assert row["chance"] == pytest.approx(1 / 3)
    assert [row[name]["accuracy"] for name in ("dense", "pruned")] == [
        cell["accuracy"] for cell in cells
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--data", "none.txt"), ("none.txt does not exist", "wikitext2")),
        (("--data", "=c4"), ("--data '=c4' lacks a part", "NAME=TEXT@SPLIT")),
        (("--data", "other.txt", "--data", "b/other.txt"), ("two corpora other.txt",)),
        (("--data", "other.txt@test"), ("no split 'test'",)),
        (("--data", "other.txt", "--record", "none.json"), ("no file none.json",)),
        (("--data", "other.txt", "--record", "other.txt"), ("other.txt cannot be read",)),
        (("--data", "other.txt", "--model", "none/at/all"), ("no such folder: none/at/all",)),
        (("--data", "other.txt", "--model", "stranger"), ("the plan was made for", "SHA-256")),
        (("--data", "other.txt", "--sequence-length", "513"), ("513 tokens", "512 positions")),
        (("--data", "other.txt", "--device", "tpu"), ("--device tpu",)),
        (("--data", "other.txt", "--dtype", "int3"), ("--dtype int3",)),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else None,
)
def test_bad_input_changes_nothing(
    pruned: Path, work: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    (work / "other.txt").write_text(TEXT)
    save_tiny("llama", work / "stranger", seed=7)
    before = tree(work)
    short = ("--sequences", "4", "--sequence-length", "32", "--device", "cpu")
    assert_refused(grasp_deploy("evaluate", "card", pruned, *short, *options), *words)
    assert tree(work) == before


def test_a_folder_that_is_no_whole_checkpoint(pruned: Path, tiny_folder: Path, work: Path) -> None:
    (work / "other.txt").write_text(TEXT)
    for folder in (tiny_folder, work / "none"):
        refused = card(folder, "--data", "other.txt")
        assert_refused(refused, f"{folder} holds no pruned checkpoint", "that compress made")
    config = pruned / "config.json"
    config.write_text(config.read_text() + "\n")
    refused = card(pruned, "--data", "other.txt")
    assert_refused(refused, "config.json is not the file that manifest.json states", "export")


def test_a_base_model_that_is_gone(pruned: Path, tiny_folder: Path, work: Path) -> None:
    shutil.copytree(tiny_folder, work / "moved")
    text = ("--calibration", "text.txt", "--sequences", "4", "--sequence-length", "16")
    short = ("--set", "scale-epochs=0", "--device", "cpu", "--keep", "0.6")
    assert grasp_deploy("compress", "./moved", "-o", "other", *text, *short).code == 0
    shutil.rmtree(work / "moved")
    (work / "other.txt").write_text(TEXT)
    refused = card("other", "--data", "other.txt")
    assert_refused(refused, "base model that the plan names is out of reach", "with --model")
    assert card("other", "--data", "other.txt", "--model", tiny_folder).code == 0


def test_records_of_others(pruned: Path, tiny_folder: Path, work: Path) -> None:
    (work / "other.txt").write_text(TEXT)
    text = ("--calibration", "text.txt", "--sequences", "4", "--sequence-length", "16")
    short = ("--device", "cpu", "--keep", "0.6")
    assert grasp_deploy("compress", tiny_folder, "-o", "twin", *text, *short).code == 0

    def refused(name: str, *models: Path) -> Ended:
        right = {model.name: [1, 0] for model in models}
        path = task_record(work / f"{name}.json", *models, right=right)
        return card(pruned, "--data", "other.txt", "--record", path)

    twin = work / "twin"
    words = ("none of them is", "`grasp-deploy evaluate tasks`")
    assert_refused(refused("twins", tiny_folder, twin), "the models model, twin", *words)
    assert_refused(refused("alone", pruned), "is the dense model", *words)
    assert_refused(refused("dense", tiny_folder), "the models model,", *words)
    save_tiny("llama", work / "stranger", seed=7)  # the same shape, other weights
    assert_refused(refused("strangers", work / "stranger", pruned), "is the dense model", *words)
    assert refused("both", tiny_folder, twin, pruned).code == 0
    twice = ("--record", work / "both.json", "--record", work / "again.json")
    shutil.copyfile(work / "both.json", work / "again.json")
    assert_refused(card(pruned, "--data", "other.txt", *twice), "has piqa once more")
    memory = {**json.loads((work / "both.json").read_text()), "benchmark": "strange"}
    (work / "strange.json").write_text(json.dumps(memory))
    strange = card(pruned, "--data", "other.txt", "--record", work / "strange.json")
    assert_refused(strange, "a record of strange", "`grasp-deploy evaluate tasks`")
