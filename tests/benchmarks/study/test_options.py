"""The texts that studies of quality are given."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.study import options


def test_the_demo_text_is_made_only_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(work: Path) -> tuple[Path, Path]:
        made.append(work)
        return work / "calibration.jsonl", work / "heldout.jsonl"

    monkeypatch.setattr(options, "demo_texts", make)
    parser = argparse.ArgumentParser()
    options.add_study_options(parser, keep="0.5")
    named = parser.parse_args(["--calibration", "a.txt", "--evaluate", "b=b.txt"])
    assert options.settings_of(named, tmp_path)["calibration"] == ["a.txt"]
    assert [corpus.label for corpus in options.corpora_of(named, tmp_path)] == ["b"]
    assert not made
    default = parser.parse_args([])
    assert options.settings_of(default, tmp_path)["calibration"][0].endswith("ion.jsonl")
    assert options.corpora_of(default, tmp_path)[0].what.endswith("heldout.jsonl")
    assert made == [tmp_path, tmp_path]


def test_files_whose_names_have_signs_of_the_option_in_them(tmp_path: Path) -> None:
    file = tmp_path / "a=b@c.txt"
    file.write_text("text")
    texts = [str(file), f"x={file}", f"y={file}@train[:9]", "z=me@home.txt@test"]
    corpora = options.parse_texts("--evaluate", texts)
    assert [(corpus.label, corpus.what, corpus.split) for corpus in corpora] == [
        (file.name, str(file), None),
        ("x", str(file), None),
        ("y", str(file), "train[:9]"),
        ("z", "me@home.txt", "test"),
    ]
