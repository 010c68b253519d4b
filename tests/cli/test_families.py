"""Several budgets and bounds on the loss on the command line: documents, tables, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import (
    SHORT,
    assert_nothing_changes,
    assert_refused,
    compress,
    document,
    grasp_deploy,
    tree,
)
from tests.cli.test_compress_output import names

FAMILY = ("--keep", "0.5,0.8", "--set", "compensation=false")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--keep", "0.8,0.8"), ("--keep '0.8,0.8' names a number twice",)),
        (("--keep", "0.5,"), ("--keep '0.5,': ''", "a number above 0 up to 1", "commas")),
        (("--keep", "0.5,80"), ("'80' is not a number above 0",)),
        (("--keep", "0.5,0.4", "--weights", "9MiB"), ("one budget", "--keep and --weights")),
        (("--keep", "0.5,0.4", "--method", "m:f"), ("need pruning in rounds", "drop --method m:f")),
        (("--keep", "0.5,0.0001"), ("under the floor", "the smallest possible is --keep 0.")),
        (("--keep", "0.5,0.4", "--max-loss", "0.1"), ("a family has no bound",)),
        (("--keep", "0.5", "--set", "bound-step=0.1"), ("bound-step=0.1 has no effect",)),
    ],
)
def test_budgets_that_cannot_be(
    tiny_folder: Path, work: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_nothing_changes(tiny_folder, *words, options=options)


def bounded(model: Path, *options: str) -> tuple[str | Path, ...]:
    return ("compress", model, "-o", "out", "--calibration", "text.txt", *SHORT[:4], *options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-loss", "0"), ("--max-loss 0 is not allowed", "above 0 up to 100")),
        (("--max-loss", "1", "--method", "m:f"), ("need pruning in rounds",)),
        (("--max-loss", "1", "--calibration", "self=0"), ("two held-out sequences",)),
    ],
)
def test_bounds_that_cannot_be(
    tiny_folder: Path, work: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    before = tree(work)
    assert_refused(grasp_deploy(*bounded(tiny_folder, *options)), *words)
    assert tree(work) == before


def test_a_family_as_a_document_and_as_a_table(tiny_folder: Path, work: Path) -> None:
    arguments = ("-o", "out", "--calibration", "text.txt", *SHORT, *FAMILY)
    record = document("compress", tiny_folder, *arguments, "--json")
    assert [member["output"] for member in record["members"]] == ["out/keep-0.8", "out/keep-0.5"]
    assert names(work / "out") == ["keep-0.5", "keep-0.8"]
    ended = compress(tiny_folder, *FAMILY, "--resume")
    assert ended.code == 0 and "keep-0.5" in ended.stdout and "dense" in ended.stdout
    assert "wrote out" in ended.stdout
    assert_nothing_changes(tiny_folder, "out/keep-0.8 exists", "--resume", options=FAMILY)
    other = ("--resume", "--keep", "0.8,0.4")
    changed = "out/keep-0.8 was made with other options"
    assert_nothing_changes(tiny_folder, changed, options=(*FAMILY, *other))
    assert_nothing_changes(tiny_folder, "output out exists")
    for option in ("--overwrite", "--resume"):  # one checkpoint in the place of a family
        words = ("something else than a pruned checkpoint", "keep-0.")
        assert_nothing_changes(tiny_folder, *words, options=(option,))


def test_commands_that_take_one_budget(tiny_folder: Path, work: Path) -> None:
    refused = grasp_deploy("up", tiny_folder, "--keep", "0.8,0.6", "--device", "cpu")
    assert_refused(refused, "up serves one model", "names 2 budgets", "with compress")
    refused = grasp_deploy("synthesize", tiny_folder, "--keep", "0.8,0.6", "-o", "out")
    assert_refused(refused, "--keep '0.8,0.6' is not allowed")


def test_what_lies_in_the_place_of_a_family_stays(tiny_folder: Path, work: Path) -> None:
    (work / "out").mkdir()
    (work / "out/thesis.txt").write_text("three years of work")
    assert compress(tiny_folder, *FAMILY).code == 0
    assert names(work / "out") == ["keep-0.5", "keep-0.8", "thesis.txt"]
    assert_nothing_changes(tiny_folder, "text.txt", options=(*FAMILY, "-o", "text.txt"))
    inside = ("out/keep-0.8", "is no folder of its own")
    assert_nothing_changes(tiny_folder, *inside, options=(*FAMILY, "-o", "out/keep-0.8"))
