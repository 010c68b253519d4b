"""Several budgets on the command line: documents, tables, and what lies in their place."""

from pathlib import Path

from tests.cli.command import (
    SHORT,
    assert_nothing_changes,
    compress,
    document,
)
from tests.cli.test_compress_output import names

FAMILY = ("--keep", "0.5,0.8", "--set", "compensation=false")


def test_a_family_as_a_document_and_as_a_table(tiny_folder: Path, work: Path) -> None:
    arguments = ("-o", "out", "--calibration", "text.txt", *SHORT, *FAMILY)
    record = document("compress", tiny_folder, *arguments, "--json")
    assert [member["output"] for member in record["members"]] == ["out/keep-0.8", "out/keep-0.5"]
    assert names(work / "out") == ["keep-0.5", "keep-0.8"]
    ended = compress(tiny_folder, *FAMILY, "--resume")
    assert ended.code == 0 and "keep-0.5" in ended.stdout and "dense" in ended.stdout
    assert "wrote out" in ended.stdout
    assert_nothing_changes(tiny_folder, "out/keep-0.8 exists: go on with --resume", options=FAMILY)
    other = ("--resume", "--keep", "0.8,0.4")
    changed = "out/keep-0.8 was made with other options (--keep ["
    assert_nothing_changes(tiny_folder, changed, options=(*FAMILY, *other))
    assert_nothing_changes(tiny_folder, "output out exists")
    for option in ("--overwrite", "--resume"):  # one checkpoint in the place of a family
        words = ("something else than a pruned checkpoint", "keep-0.")
        assert_nothing_changes(tiny_folder, *words, options=(option,))


def test_what_lies_in_the_place_of_a_family_stays(tiny_folder: Path, work: Path) -> None:
    (work / "out").mkdir()
    (work / "out/thesis.txt").write_text("three years of work")
    assert compress(tiny_folder, *FAMILY).code == 0
    assert names(work / "out") == ["keep-0.5", "keep-0.8", "thesis.txt"]
    inside = ("out/keep-0.8", "is no folder of its own")
    assert_nothing_changes(tiny_folder, *inside, options=(*FAMILY, "-o", "out/keep-0.8"))
