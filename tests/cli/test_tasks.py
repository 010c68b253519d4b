"""`evaluate tasks`: models side by side, a record that `report` draws, one line for bad input."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Ended, assert_refused, grasp_deploy, run_process
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
def test_items_at_the_limits_of_what_is_taken(tiny_folder: Path, work: Path) -> None:
    item = {"query": "\ud800", "choices": ["word " * 200, "x"], "gold": 1}
    (work / "odd.jsonl").write_text(json.dumps(item))
    ended = run_process("evaluate", "tasks", tiny_folder, "--task-file", "odd.jsonl")
    assert_refused(ended, "answer of 1001 tokens", "512 at most", "leave that item out")
    (work / "odd.jsonl").write_text(json.dumps({**item, "choices": ["\ud800", "x"]}))
    ended = tasks(tiny_folder, "--task-file", "odd.jsonl", "--limit", str(10**30))
    assert ended.code == 0, ended.stderr


@needs_lm_eval
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("no task is named", "--tasks, --preset or --task-file")),
        (("--tasks", "piqa,,x"), ("--tasks 'piqa,,x'", "names nothing")),
        (("--preset", "hard"), ("--preset hard", "paper or complex")),
        (("--tasks", "query", "--task-file", "query.jsonl"), ("query is named twice",)),
        (("--task-file", "none.jsonl"), ("none.jsonl does not exist",)),
        (("--task-file", "text.txt"), ("text.txt", "not valid JSON")),
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


def test_without_lm_eval_the_remedy_is_named(tiny_folder: Path, files: list[str]) -> None:
    hide = "import sys; sys.modules['lm_eval'] = None"
    folder = Path("hidden")
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(hide)
    ended = run_process("evaluate", "tasks", tiny_folder, *files, PYTHONPATH=python_path(folder))
    assert_refused(ended, "lm-eval is not installed", "pip install 'grasp-deploy[eval]'")


def python_path(folder: Path) -> str:
    from tests.cli.command import environment

    return f"{folder.resolve()}:{environment()['PYTHONPATH']}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--stride", "33"), ("--stride 33", "use 32 or less")),
        (("--per-document", "--data", "empty.txt"), ("is empty",)),
        (("--per-document", "--data", "letters.jsonl"), ("no document", "two tokens")),
    ],
)
def test_perplexity_options(
    tiny_folder: Path, work: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    (work / "empty.txt").touch()
    (work / "letters.jsonl").write_text('{"text": "a"}\n')
    data = ("--data", "text.txt", "--sequence-length", "32", *options)
    assert_refused(grasp_deploy("evaluate", "perplexity", tiny_folder, *data), *words)


def test_perplexity_in_windows_and_of_documents(tiny_folder: Path, work: Path) -> None:
    (work / "texts.jsonl").write_text('{"text": "one two three"}\n{"text": "x"}\n{"text": "four"}')
    slid = ("--data", "text.txt", "--sequence-length", "32", "--sequences", "3", "--stride", "8")
    record = perplexity(tiny_folder, *slid)
    assert record["tokens"] == record["bytes"] == 95  # a byte is a token
    assert record["data"]["stride"] == 8
    apart = perplexity(tiny_folder, "--data", "texts.jsonl", "--per-document")
    assert apart["tokens"] == len("one two three") - 1 + len("four") - 1
    assert (apart["data"]["documents"], apart["data"]["documents_skipped"]) == (2, 1)
    said = grasp_deploy(
        "evaluate", "perplexity", tiny_folder, "--data", "texts.jsonl", "--per-document"
    )
    assert f"perplexity {apart['perplexity']:.3f} (95 %: " in said.stdout
    mean = apart["mean_over_documents"]["perplexity"]
    assert f"each document counted once, however long: {mean:.3f}" in said.stdout
    assert "bits per byte" in said.stdout and "each document (2 in all)" in said.stdout


def perplexity(*arguments: str | Path) -> dict[str, Any]:
    ended = grasp_deploy("evaluate", "perplexity", *arguments, "--json")
    assert ended.code == 0, ended.stderr
    record: dict[str, Any] = json.loads(ended.stdout)
    return record
