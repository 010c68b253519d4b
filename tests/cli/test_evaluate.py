"""`evaluate compare` and `evaluate tasks`: figures, a record that others read, bad input."""

import importlib
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.checkpoint.write.quantize import quantize
from tests.cli.command import Ended, assert_refused, document, grasp_deploy
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval, write_items
from tests.tiny import save_tiny

DATA = ("--data", "text.txt", "--sequence-length", "32", "--sequences", "3")


@pytest.fixture
def files(work: Path) -> list[str]:
    return [option for path in write_items(work).values() for option in ("--task-file", path.name)]


def compared(*arguments: str | Path) -> Ended:
    return grasp_deploy("evaluate", "compare", *arguments)


def tasks(*arguments: str | Path) -> Ended:
    return grasp_deploy("evaluate", "tasks", *arguments)


def test_of_a_short_text_all_is_taken(tiny_folder: Path, work: Path) -> None:
    ended = compared(tiny_folder, "--data", "text.txt", "--sequence-length", "64", "--json")
    assert json.loads(ended.stdout)["cells"][0]["data"]["sequences"] == 70


def test_losses_side_by_side(pruned_once: Path, tiny_folder: Path, work: Path) -> None:
    """Dense, pruned and quantised on two texts, as a record that `report` reads."""
    pytest.importorskip("compressed_tensors", reason="transformers needs it for int8 weights")
    quantize(pruned_once, "int8", work / "int8")
    (work / "other.txt").write_text(" ".join(map(str, range(500))))
    models, data = (tiny_folder, pruned_once, "int8"), (*DATA, "--data", "numbers=other.txt")
    record = document("evaluate", "compare", *models, *data, "--json", "-o", "loss.json")
    assert record == json.loads(Path("loss.json").read_text())
    names = [(cell["data"]["name"], cell["model"]) for cell in record["cells"]]
    both = ("text.txt", "numbers")
    assert names == [(text, model) for text in both for model in ("model", "out", "int8")]
    dense, pruned, int8 = record["cells"][3:]
    assert (dense["excess_nats"], dense["divergence"], dense["agreement"]) == (0, 0, 1)
    for cell in (pruned, int8):
        lost = cell["loss_nats_per_token"] - dense["loss_nats_per_token"]
        assert cell["excess_nats"] == pytest.approx(lost) and cell["excess_error"] > 0
        assert cell["divergence"] > 0 and 0 <= cell["agreement"] < 1 and cell["tokens"] == 3 * 31
    assert int8["loss_nats_per_token"] == pytest.approx(pruned["loss_nats_per_token"], abs=0.05)
    alone = document("evaluate", "compare", pruned_once, *data, "--json")["cells"][1]
    assert alone["perplexity"] == pytest.approx(pruned["perplexity"])
    assert [len(said["answers"]) for said in record["said"]] == [3, 3, 3]
    sizes = [model["footprint"]["weight_bytes"] for model in record["models"]]
    assert sizes[0] > sizes[1] > sizes[2]
    other = document("evaluate", "compare", tiny_folder, *data, "--dtype", "bfloat16", "--json")
    assert other["cells"][0]["dtype"] == "bfloat16"
    assert other["models"] == record["models"][:1], "weights have the same size in any dtype"
    drawn = grasp_deploy("report", "loss.json")
    assert "numbers: 93 tokens" in drawn.stdout, drawn.stderr
    assert f"{pruned['excess_nats']:+.3f} ± {pruned['excess_error']:.3f}" in drawn.stdout


def test_models_of_other_tokens_are_not_compared(tiny_folder: Path, work: Path) -> None:
    words = ("are not those of model", "models of one tokenizer")
    save_tiny("llama", work / "wider", vocab_size=300)
    assert_refused(compared(tiny_folder, "wider", *DATA), "the tokens of wider", *words)
    shutil.copytree(tiny_folder, work / "other")
    file = work / "other/tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.__getitem__)[40:42]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(tokenizer))
    (work / "all.txt").write_text("".join(map(chr, range(32, 127))) * 10)
    data = ("--data", "all.txt", *DATA[2:])
    assert_refused(compared(tiny_folder, "other", *data), "the tokens of other", *words)


@needs_lm_eval
def test_models_side_by_side(pruned: Path, tiny_folder: Path, files: list[str], work: Path) -> None:
    output = ("--limit", "8", "--json", "-o", "record.json")
    record = document("evaluate", "tasks", tiny_folder, pruned, *files, *output)
    assert record == json.loads(Path("record.json").read_text())
    assert record["benchmark"] == "tasks" and "lm_eval" in record["versions"]
    settings = [record["settings"][name] for name in ("engine", "dtype", "limit")]
    assert settings == ["transformers", "float32", 8]
    names = ("model", "pruned")
    order = [(cell["model"], cell["task"]) for cell in record["cells"]]
    assert order == [(n, t) for n in names for t in ("query", "contexts", "hellaswag")]
    by_model = {n: [c for c in record["cells"] if c["model"] == n] for n in names}
    prompts = [[cell["prompts_sha256"] for cell in cells] for cells in by_model.values()]
    assert prompts[0] == prompts[1]
    for average in record["averages"]:
        accuracies = []
        for cell in by_model[average["model"]]:
            assert len(cell["items"]) == 8
            accuracies.append(statistics.fmean(item[cell["metric"]] for item in cell["items"]))
        assert average["accuracy"] == pytest.approx(statistics.fmean(accuracies))
    drawn = grasp_deploy("report", "record.json").stdout
    for words in ("Accuracy on tasks", "hellaswag", "acc_norm", "average", "change", "±"):
        assert words in drawn, words

    (work / "other.txt").write_text("Ten jugs of quartz vexed the brown dwarf. " * 100)
    text = ("--data", "other.txt", "--sequences", "4", "--sequence-length", "32")
    rows = document("evaluate", "card", pruned, *text, "--record", "record.json", "--json")["tasks"]
    assert (rows[0]["task"], rows[0]["items"]) == ("query", 8)
    assert rows[0]["chance"] == pytest.approx(1 / 3)
    for name, cells in zip(("dense", "pruned"), by_model.values(), strict=True):
        assert [r[name]["accuracy"] for r in rows] == [cell["accuracy"] for cell in cells]


class Stopped(Exception):
    """A failure, or Ctrl-C."""


@needs_lm_eval
@pytest.mark.parametrize(
    ("kind", "place", "done"), [("compare", "compare._cells", 2), ("tasks", "tasks.run.load", 1)]
)
def test_a_failure_keeps_the_models_that_are_done(
    kind: str,
    place: str,
    done: int,
    tiny_folder: Path,
    files: list[str],
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, _, name = f"grasp_deploy.evaluate.{place}".rpartition(".")
    call: Any = getattr(importlib.import_module(module), name)
    calls: list[int] = []

    def failing(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise Stopped
        return call(*given, **named)

    monkeypatch.setattr(f"{module}.{name}", failing)
    models = [Path(shutil.copytree(tiny_folder, work / name)) for name in ("a", "b", "c")]
    options = DATA if kind == "compare" else (*files[:2], "--limit", "4")
    with pytest.raises(Stopped):
        grasp_deploy("evaluate", kind, *models, *options, "-o", "some.json")
    record = json.loads(Path("some.json").read_text())
    assert [model["name"] for model in record["models"]] == ["a", "b", "c"][:done]
    assert grasp_deploy("report", "some.json").code == 0


@needs_lm_eval
def test_the_table_says_what_it_shows(tiny_folder: Path, files: list[str]) -> None:
    ended = tasks(tiny_folder, *files[:2], "--num-fewshot", "1", "--max-tokens", "40")
    assert ended.code == 0, ended.stderr
    text = " ".join(ended.stdout.split())
    assert "acc_norm where a task has it, else acc" in text
    assert "examples in the prompt: query 1" in text
    assert "prompts were too long and lost their beginning" in text


@needs_lm_eval
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("no task is named", "--tasks, --preset or --task-file")),
        (("--tasks", "piqa,,x"), ("--tasks 'piqa,,x'", "has an empty name")),
        (("--preset", "hard"), ("'--preset'", "'hard'", "'paper'")),
        (("--tasks", "query", "--task-file", "query.jsonl"), ("query is named twice",)),
        (("--task-file", "query.jsonl", "--engine", "slow"), ("--engine 'slow'", "vllm")),
        (("--task-file", "query.jsonl", "--max-tokens", "513"), ("513", "512 positions")),
        (("--task-file", "query.jsonl", "--enforce-eager"), ("option of vLLM",)),
        (("--task-file", "query.jsonl", "--device", "tpu"), ("--device tpu",)),
        (("--task-file", "query.jsonl", "--dtype", "int3"), ("--dtype 'int3'",)),
    ],
    ids=" ".join,
)
def test_options_of_tasks(
    tiny_folder: Path, files: list[str], options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_refused(tasks(tiny_folder, *options), *words)


def test_without_lm_eval_the_remedy_is_named(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    ended = tasks("model", "--tasks", "piqa")
    assert_refused(ended, "lm-eval is not installed", "pip install 'grasp-deploy[eval]'")
