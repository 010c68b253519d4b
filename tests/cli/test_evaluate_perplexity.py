"""`evaluate perplexity`: figures, windows and documents, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cli.command import SHORT, assert_refused, document, grasp_deploy


def test_its_json(pruned: Path) -> None:
    data = ("--data", "text.txt", "--sequence-length", "32", "--sequences", "3")
    record = document("evaluate", "perplexity", pruned, *data, "--json")
    assert record.keys() >= {"perplexity", "tokens", "data"}
    assert record["tokens"] == 3 * 31
    assert record["data"]["source"] == "text.txt"
    assert 1 < record["perplexity"] < 1e9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--data", "no.txt"), ("no.txt does not exist",)),
        (("--sequences", "1000"), ("too short", "give 140 sequences")),
        (("--stride", "33"), ("--stride 33", "use 32 or less")),
        (("--per-document", "--data", "empty.txt"), ("is empty",)),
        (("--per-document", "--data", "letters.jsonl"), ("no document", "two tokens")),
    ],
)
def test_what_it_refuses(
    tiny_folder: Path, work: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    (work / "empty.txt").touch()
    (work / "letters.jsonl").write_text('{"text": "a"}\n')
    data = ("--data", "text.txt", "--sequence-length", "32", *options)
    assert_refused(grasp_deploy("evaluate", "perplexity", tiny_folder, *data), *words)


def test_windows_and_documents(tiny_folder: Path, work: Path) -> None:
    (work / "texts.jsonl").write_text('{"text": "one two three"}\n{"text": "x"}\n{"text": "four"}')
    slid = ("--data", "text.txt", "--sequence-length", "32", "--sequences", "3", "--stride", "8")
    record = document("evaluate", "perplexity", tiny_folder, *slid, "--json")
    assert record["tokens"] == record["bytes"] == 95  # a byte is a token
    assert record["data"]["stride"] == 8
    apart = document(
        *("evaluate", "perplexity", tiny_folder, "--data", "texts.jsonl", "--per-document"),
        "--json",
    )
    assert apart["tokens"] == len("one two three") - 1 + len("four") - 1
    assert (apart["data"]["documents"], apart["data"]["documents_skipped"]) == (2, 1)
    said = grasp_deploy(
        "evaluate", "perplexity", tiny_folder, "--data", "texts.jsonl", "--per-document"
    )
    assert f"perplexity {apart['perplexity']:.3f} (95 %: " in said.stdout
    mean = apart["mean_over_documents"]["perplexity"]
    assert f"each document counted once, however long: {mean:.3f}" in said.stdout
    assert "bits per byte" in said.stdout and "each document (2 in all)" in said.stdout


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nGPU 0 has"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] can't allocate memory: you tried"),
    ],
    ids=["GPU", "CPU"],
)
def test_out_of_memory(
    pruned: Path, work: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("grasp_deploy.evaluate.perplexity.perplexity", full)
    ended = grasp_deploy("evaluate", "perplexity", pruned, "--data", "text.txt", *SHORT[:4])
    assert_refused(ended, str(error).splitlines()[0].rstrip("."), "smaller batch size")
