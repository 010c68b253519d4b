"""`evaluate card`: from the command to the model card, and one line for bad input."""

import json
import math
import shutil
from pathlib import Path

import pytest

from grasp_deploy.checkpoint.card.quality_verdict import quality_verdict
from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.files.outputs import lock_of, locked
from tests.cli.command import Ended, assert_refused, compress, document, grasp_deploy, succeeded
from tests.evaluate.tasks import task_records
from tests.tiny import save_tiny

BLOCKS, TOKENS = 6, 64
SMALL = ("--sequences", str(BLOCKS), "--sequence-length", str(TOKENS), "--device", "cpu")


def card(*arguments: str | Path) -> Ended:
    return grasp_deploy("evaluate", "card", arguments[0], *SMALL, *arguments[1:])


@pytest.fixture
def checkpoint(demo_checkpoint: Path, work: Path) -> Path:
    """The demo model's checkpoint, to be changed."""
    return Path(shutil.copytree(demo_checkpoint, work / "smaller"))


@pytest.fixture
def other(work: Path) -> Path:
    """The working folder, with text that is not for calibration."""
    (work / "other.txt").write_text("Ten jugs of quartz vexed the brown dwarf by night. " * 100)
    return work


def task_record(path: Path, *models: Path, right: dict[str, list[int]]) -> Path:
    """A record of one task of two choices, with which answers of which model were right."""
    chosen = bench_models([str(model) for model in models])
    record = task_records.task_record(standard_error=0.05)
    record["models"] = [{**one.as_dict(), "weight_hashes": file_hashes(one.path)} for one in chosen]
    shared = {**record["cells"][0], "metric": "acc"}
    record["cells"] = []
    for one in chosen:
        answers, scores = right[one.name], {"loglikelihoods": [-1.0, -2.0]}
        items = [{"item": i, "acc": float(value), **scores} for i, value in enumerate(answers)]
        cell = {"model": one.name, "accuracy": sum(answers) / len(answers), "items": items}
        record["cells"].append({**shared, **cell})
    path.write_text(json.dumps(record))
    return path


@pytest.mark.slow
def test_from_the_command_to_the_card(
    checkpoint: Path, demo_model: Path, demo_text: tuple[Path, Path], work: Path
) -> None:
    right = {"model": [1] * 90 + [0] * 10, "smaller": [1] * 70 + [0] * 30}
    record = task_record(work / "tasks.json", demo_model, checkpoint, right=right)
    data = ("--data", f"docs={demo_text[1]}@train", "--data", demo_text[0], "--record", record)
    quality = document("evaluate", "card", checkpoint, *SMALL, *data, "--json")
    assert quality == json.loads((checkpoint / "quality.json").read_text())
    docs, calibration = quality["corpora"]
    assert (docs["name"], docs["source"], docs["split"]) == ("docs", "heldout.jsonl", "train")
    assert [docs["calibrated_on"], calibration["calibrated_on"]] == [False, True]
    assert docs["tokens"] == BLOCKS * (TOKENS - 1)
    told = [docs[name]["perplexity"] for name in ("dense", "pruned")]
    for folder, figure in zip((demo_model, checkpoint), told, strict=True):
        options = ("--data", demo_text[1], *SMALL, "--json")
        (cell,) = document("evaluate", "compare", folder, *options)["cells"]
        assert cell["perplexity"] == figure
    assert docs["excess_loss"] == pytest.approx(math.log(told[1] / told[0]))
    assert 0 < docs["excess_error"] < docs["excess_loss"]
    (piqa,) = quality["tasks"]
    assert (piqa["chance"], piqa["change"]) == (0.5, pytest.approx(-0.2))
    assert str(demo_text[1].parent) not in (checkpoint / "quality.json").read_text()

    text = (checkpoint / "README.md").read_text()
    verdict = quality["verdict"]
    assert verdict == quality_verdict([docs], [piqa])
    assert f"**{verdict['outcome'].capitalize()}**: " in text
    assert verdict["sentence"].removeprefix(verdict["outcome"]) in text
    assert f"| docs (train) | {docs['tokens']} in " in text and f" | {told[0]:,.2f} |" in text
    assert "| calibration.jsonl† |" in text and "| piqa (acc) | 100 | 50.0 | 90.0 ± 5.0 |" in text

    assert len(quality["answers"]) == 3, "each model says something of its own"
    for row in quality["answers"]:
        assert row["dense"] and row["pruned"] and row["dense"] != row["pruned"]
        assert f"- {row['prompt']}\n    - dense: `{row['dense'].replace('`', chr(39))}`\n" in text

    said = card(checkpoint, *data)
    assert said.code == 0, said.stderr
    assert verdict["sentence"] in said.stdout and "docs (train)" in said.stdout
    assert json.loads((checkpoint / "quality.json").read_text()) == quality
    succeeded("verify", checkpoint)
    assert "quality.json" in json.loads((checkpoint / "manifest.json").read_text())["sha256"]


def test_calibration_text_under_another_name_does_not_count(
    checkpoint: Path, demo_text: tuple[Path, Path], work: Path
) -> None:
    shutil.copyfile(demo_text[0], work / "other.jsonl")
    data = ("--data", "mine=other.jsonl", "--data", demo_text[1])
    quality = document("evaluate", "card", checkpoint, *SMALL, *data, "--json")
    mine, heldout = quality["corpora"]
    assert (mine["calibrated_on"], mine["calibrated_on_share"]) == (True, 1.0)
    assert not heldout["calibrated_on"] and heldout["calibrated_on_share"] < 0.01
    assert quality["verdict"]["sentence"].count("on mine") == 0
    assert "| mine† |" in (checkpoint / "README.md").read_text()


def test_other_text_of_the_same_name_counts_as_in_a_comparison(
    checkpoint: Path, demo_text: tuple[Path, Path], demo_model: Path, work: Path
) -> None:
    shutil.copyfile(demo_text[1], work / demo_text[0].name)
    data = ("--data", demo_text[0].name, *SMALL, "--json")
    quality = document("evaluate", "card", checkpoint, *data)
    (row,) = quality["corpora"]
    _, cell = document("evaluate", "compare", demo_model, checkpoint, *data)["cells"]
    assert row["calibrated_on_share"] == cell["calibrated_on_share"] < 0.01
    assert not row["calibrated_on"] and "on calibration.jsonl" in quality["verdict"]["sentence"]


def test_a_folder_that_somebody_writes_is_not_measured(
    pruned: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grasp_deploy.evaluate.card.load", lambda *_, **__: pytest.fail("loaded"))
    with locked(lock_of(pruned.resolve()), pruned):
        assert_refused(card(pruned, "--data", "other.txt"), "another run is at work on")


def test_a_folder_that_is_replaced_while_it_is_measured_gets_no_card(
    pruned: Path, tiny_folder: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced() -> dict[str, str]:
        assert compress(tiny_folder, "-o", "pruned", "--keep", "0.5", "--overwrite").code == 0
        return {}

    monkeypatch.setattr("grasp_deploy.evaluate.card.versions", replaced)
    refused = card(pruned, "--data", "other.txt")
    assert refused.code == 2 and "pruned holds another" in refused.stderr.splitlines()[-1]
    assert load_plan(pruned / PLAN_FILE).provenance["config"]["keep"] == 0.5
    assert not (pruned / "quality.json").exists()


def test_a_folder_that_is_not_a_whole_checkpoint(
    pruned: Path, tiny_folder: Path, other: Path
) -> None:
    refused = card(tiny_folder, "--data", "other.txt")
    assert_refused(refused, f"{tiny_folder} holds no pruned checkpoint", "that compress made")
    config = pruned / "config.json"
    config.write_text(config.read_text() + "\n")
    refused = card(pruned, "--data", "other.txt")
    assert_refused(refused, "config.json is not the file that manifest.json states", "export")


def test_records_of_others(pruned: Path, tiny_folder: Path, other: Path) -> None:
    assert compress(tiny_folder, "-o", "twin", "--seed", "1").code == 0

    def with_record(*models: Path) -> Ended:
        right = {model.name: [1, 0] for model in models}
        path = task_record(other / "record.json", *models, right=right)
        return card(pruned, "--data", "other.txt", "--record", path)

    twin, stranger = other / "twin", other / "stranger"
    words = ("none of them is", "`grasp-deploy evaluate tasks`")
    assert_refused(with_record(tiny_folder, twin), "the models model, twin", *words)
    assert_refused(with_record(pruned), "is the dense model", *words)
    save_tiny("llama", stranger, seed=7)  # the same shape, other weights
    assert_refused(with_record(stranger, pruned), "is the dense model", *words)
    assert with_record(tiny_folder, twin, pruned).code == 0
    shutil.copyfile(other / "record.json", other / "again.json")
    twice = ("--record", "record.json", "--record", "again.json")
    assert_refused(card(pruned, "--data", "other.txt", *twice), "has piqa once more")
