"""`evaluate drift`: a record that `report` draws again, and one line for bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from grasp_deploy.data.overlap import fingerprint
from grasp_deploy.evaluate.drift import run
from tests.cli.command import Ended, assert_refused, document, edit_json, grasp_deploy
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval, write_items
from tests.tiny import save_tiny

SMALL = ("--data", "text.txt", "--sequence-length", "32", "--sequences", "3")
OTHER = ("--data", "numbers=other.txt")


@pytest.fixture(autouse=True)
def texts(work: Path) -> None:
    (work / "other.txt").write_text(" ".join(map(str, range(500))))
    (work / "prompts.jsonl").write_text('{"text": "Once upon"}\n{"text": "a"}\n')


def drift(*arguments: str | Path) -> Ended:
    return grasp_deploy("evaluate", "drift", *arguments)


@needs_lm_eval
def test_texts_items_and_prompts(
    tiny_folder: Path, pruned_once: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tiny checkpoint's sequences are too short for a fingerprint of its own.
    calibrated = fingerprint(torch.tensor([list(Path("text.txt").read_bytes())]))
    monkeypatch.setattr(run, "calibrated_beside", {pruned_once: calibrated}.get)
    items = ("--task-file", write_items(work)["query"])
    prompts = ("--prompts", "prompts.jsonl", "--max-new-tokens", "6")
    asked = (tiny_folder, pruned_once, *SMALL, *OTHER, *items, *prompts)
    record = document("evaluate", "drift", *asked, "--json", "-o", "drift.json")
    assert record == json.loads(Path("drift.json").read_text())
    seen, other = record["texts"]
    assert (seen["name"], seen["calibrated_on"]) == ("text.txt", True)
    assert (other["name"], other["calibrated_on"], other["tokens"]) == ("numbers", False, 3 * 31)
    assert other["divergence"] > 0 and 0 <= other["agreement"] < 1
    assert other["excess_loss"] == pytest.approx(other["pruned_loss"] - other["dense_loss"])
    assert record["excess"]["worst_text"] == "numbers" and record["excess"]["texts"] == 1
    alone = ("--data", "other.txt", *SMALL[2:], "--json")
    for folder, key in ((tiny_folder, "dense_loss"), (pruned_once, "pruned_loss")):
        (perplexity,) = document("evaluate", "perplexity", folder, *alone)["cells"]
        assert perplexity["loss_nats_per_token"] == pytest.approx(other[key], rel=1e-5)
    (flips,) = record["tasks"]
    assert (flips["task"], flips["items"]) == ("query", 12)
    assert flips["flips"] == pytest.approx(flips["right_to_wrong"] + flips["wrong_to_right"])
    assert (record["answers"]["prompts"], record["answers"]["most_tokens"]) == (2, 6)
    drawn = " ".join(grasp_deploy("report", "drift.json").stdout.split())
    for words in ("text.txt†", "worst: numbers", "Answers that flip", "not ended in 6 tokens"):
        assert words in drawn, words


def test_a_model_against_itself(tiny_folder: Path) -> None:
    ended = drift(tiny_folder, tiny_folder, *SMALL, "--output", "same.json")
    assert ended.code == 0, ended.stderr
    record = json.loads(Path("same.json").read_text())
    assert [model["name"] for model in record["models"]] == ["model", "model#2"]
    (text,) = record["texts"]
    assert (text["divergence"], text["agreement"], text["excess_loss"]) == (0, 1, 0)
    assert record["tasks"] == [] and record["answers"] is None
    assert "Answers that flip" not in ended.stdout and "Greedy answers" not in ended.stdout


def test_prompts_go_through_the_chat_template(tiny_folder: Path, work: Path) -> None:
    chat = Path(shutil.copytree(tiny_folder, work / "chat"))
    template = "{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}"
    (chat / "chat_template.jinja").write_text(template * 60)
    asked = (chat, chat, *SMALL, "--prompts", "prompts.jsonl", "--max-new-tokens", "6")
    assert_refused(drift(*asked), "one has 600 tokens", "the 512 positions", "--max-new-tokens")
    (chat / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    assert_refused(drift(*asked), "prompt 0", "refused by the chat template", "(no)")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((*SMALL, "--data", "text.txt"), ("two corpora text.txt",)),
        ((*SMALL, "--data", "none.txt"), ("none.txt does not exist",)),
        ((*SMALL, "--prompts", "none.txt"), ("none.txt does not exist",)),
        ((*SMALL, "--prompts", "other.txt"), ("tokens, and with 256", "512 positions")),
        ((*SMALL, "--task-file", "none.jsonl"), ("none.jsonl",)),
        ((*SMALL, "-o", "text.txt"), ("text.txt exists and is not a record",)),
        ((), ("--data",)),
    ],
    ids=" ".join,
)
def test_bad_input(
    tiny_folder: Path, pruned_once: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_refused(drift(tiny_folder, pruned_once, *options), *words)


def test_models_of_other_tokens_and_without_an_end(tiny_folder: Path, work: Path) -> None:
    save_tiny("llama", work / "wider", vocab_size=300)
    words = ("wider was not made from", "their tokens differ", "name the dense model, then")
    assert_refused(drift(tiny_folder, "wider", *SMALL), *words)
    endless = Path(shutil.copytree(tiny_folder, work / "endless"))
    edit_json(endless / "tokenizer_config.json", eos_token=None)
    edit_json(endless / "config.json", eos_token_id=None)
    (endless / "generation_config.json").unlink()
    refused = drift(endless, endless, *SMALL, "--prompts", "prompts.jsonl")
    assert_refused(refused, "names a token that ends an answer", "leave --prompts out")
