"""`evaluate tasks`: models side by side, a record that `report` draws, one line for bad input."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Ended, assert_refused, environment, grasp_deploy, run_process
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval, write_items


@pytest.fixture
def files(work: Path) -> list[str]:
    return [option for path in write_items(work).values() for option in ("--task-file", path.name)]


def tasks(*arguments: str | Path) -> Ended:
    return grasp_deploy("evaluate", "tasks", *arguments)


@needs_lm_eval
def test_models_side_by_side(pruned: Path, tiny_folder: Path, files: list[str]) -> None:
    ended = tasks(tiny_folder, pruned, *files, "--limit", "8", "--json", "-o", "record.json")
    assert ended.code == 0, ended.stderr
    record: dict[str, Any] = json.loads(ended.stdout)
    assert record == json.loads(Path("record.json").read_text())
    assert record["benchmark"] == "tasks" and "lm_eval" in record["versions"]
    settings = record["settings"]
    assert (settings["engine"], settings["dtype"], settings["limit"]) == (
        *("transformers", "float32"),
        8,
    )
    names = [model["name"] for model in record["models"]]
    assert names == ["model", "pruned"]
    order = [(cell["model"], cell["task"]) for cell in record["cells"]]
    assert order == [(n, t) for n in names for t in ("query", "contexts", "hellaswag")]
    by_model = {n: [c for c in record["cells"] if c["model"] == n] for n in names}
    prompts = [[cell["prompts_sha256"] for cell in cells] for cells in by_model.values()]
    assert prompts[0] == prompts[1]
    for average in record["averages"]:
        accuracies = []
        for cell in by_model[average["model"]]:
            assert len(cell["items"]) == 8
            right = [item[cell["metric"]] for item in cell["items"]]
            accuracies.append(statistics.fmean(right))
        assert average["accuracy"] == pytest.approx(statistics.fmean(accuracies))
    drawn = grasp_deploy("report", "record.json")
    assert drawn.code == 0, drawn.stderr
    for words in ("Accuracy on tasks", "hellaswag", "acc_norm", "average", "change", "±"):
        assert words in drawn.stdout, words


@needs_lm_eval
def test_the_table_says_what_it_shows(tiny_folder: Path, files: list[str]) -> None:
    ended = tasks(tiny_folder, *files[:2], "--num-fewshot", "1", "--max-tokens", "40")
    assert ended.code == 0, ended.stderr
    text = " ".join(ended.stdout.split())
    assert "acc_norm where a task has it, else acc" in text
    assert "examples in the prompt: query 1" in text
    assert "prompts were too long and lost their beginning" in text


@needs_lm_eval
def test_an_answer_longer_than_the_model_takes(tiny_folder: Path, work: Path) -> None:
    item = {"query": "q", "choices": ["word " * 200, "x"], "gold": 1}
    (work / "long.jsonl").write_text(json.dumps(item))
    ended = tasks(tiny_folder, "--task-file", "long.jsonl")
    assert ended.code == 2
    error = ended.stderr.splitlines()[-1]  # above it stands lm-eval's progress
    for words in ("answer of 1001 tokens", "512 at most", "leave that item out"):
        assert words in error


@needs_lm_eval
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("no task is named", "--tasks, --preset or --task-file")),
        (("--tasks", "piqa,,x"), ("--tasks 'piqa,,x'", "has an empty name")),
        (("--preset", "hard"), ("--preset hard", "paper or complex")),
        (("--tasks", "query", "--task-file", "query.jsonl"), ("query is named twice",)),
        (("--task-file", "none.jsonl"), ("none.jsonl cannot be read",)),
        (("--task-file", "text.txt"), ("text.txt", "not a JSON object")),
        (("--task-file", "query.jsonl", "--engine", "slow"), ("--engine slow", "vllm")),
        (("--task-file", "query.jsonl", "--max-tokens", "513"), ("513", "512 positions")),
        (("--task-file", "query.jsonl", "--num-fewshot", "12"), ("12 exceeds the 11 other",)),
        (("--task-file", "query.jsonl", "--enforce-eager"), ("option of vLLM",)),
        (("--task-file", "query.jsonl", "--device", "tpu"), ("--device tpu",)),
        (("--task-file", "query.jsonl", "--dtype", "int3"), ("--dtype int3",)),
        (("--task-file", "query.jsonl", "-o", "text.txt"), ("text.txt exists and is no record",)),
    ],
    ids=" ".join,
)
def test_options(
    tiny_folder: Path, files: list[str], options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_refused(tasks(tiny_folder, *options), *words)


@pytest.mark.slow
def test_without_lm_eval_the_remedy_is_named(tiny_folder: Path, files: list[str]) -> None:
    hide = "import sys; sys.modules['lm_eval'] = None"
    folder = Path("hidden")
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(hide)
    ended = run_process("evaluate", "tasks", tiny_folder, *files, PYTHONPATH=python_path(folder))
    assert_refused(ended, "lm-eval is not installed", "pip install 'grasp-deploy[eval]'")


def python_path(folder: Path) -> str:
    return f"{folder.resolve()}:{environment()['PYTHONPATH']}"
