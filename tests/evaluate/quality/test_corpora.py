"""What `--data` means, which corpora are the default, and which were calibrated on."""

from __future__ import annotations

from pathlib import Path

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.quality.corpora import (
    Corpus,
    calibration_sources,
    healing_sources,
    heldout_corpora,
    is_calibrated_on,
    parse_corpus,
)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "corpus"),
    [
        ("c4", Corpus("c4", "c4")),
        ("wikitext2@validation", Corpus("wikitext2", "wikitext2", "validation")),
        ("mine=folder/x.txt", Corpus("mine", "folder/x.txt")),
        ("folder/x.txt", Corpus("x.txt", "folder/x.txt")),
        ("mine=x.jsonl@train[9:]", Corpus("mine", "x.jsonl", "train[9:]")),
        ("hf:org/name:en@test", Corpus("hf:org/name:en", "hf:org/name:en", "test")),
        ("folder/a=b.txt", Corpus("a=b.txt", "folder/a=b.txt")),
    ],
)
def test_data(text: str, corpus: Corpus) -> None:
    assert parse_corpus(text) == corpus


def test_a_file_that_is_called_so_comes_first(work: Path) -> None:
    for name in ("a=b.txt", "c@d.txt"):
        (work / name).touch()
    assert parse_corpus("a=b.txt") == Corpus("a=b.txt", "a=b.txt")
    assert parse_corpus("c@d.txt") == Corpus("c@d.txt", "c@d.txt")
    assert parse_corpus("mine=c@d.txt") == Corpus("mine", "c@d.txt")
    assert parse_corpus("mine=c@d.txt@train") == Corpus("mine", "c@d.txt", "train")


@pytest.mark.parametrize("text", ["", "=c4", "mine=", "c4@", "@test", "mine=@test"])
def test_a_part_that_lacks(text: str) -> None:
    with pytest.raises(InputError, match="lacks a part: write NAME=SOURCE@SPLIT"):
        parse_corpus(text)


@pytest.mark.parametrize(
    ("calibrated", "names"),
    [
        (["wikitext2"], ["c4"]),
        (["hf:Salesforce/wikitext:wikitext-2-raw-v1"], ["c4"]),
        (["c4", "mine.txt"], ["wikitext2"]),
        (["mine.txt"], ["wikitext2", "c4"]),
    ],
)
def test_the_default_is_what_was_not_calibrated_on(calibrated: list[str], names: list[str]) -> None:
    assert [corpus.name for corpus in heldout_corpora([], calibrated)] == names


def test_no_default_is_left() -> None:
    with pytest.raises(InputError, match="calibrated on wikitext2 and c4: name other text"):
        heldout_corpora([], ["c4", "wikitext2"])


def test_what_was_healed_on_is_no_default_either() -> None:
    healing = [{"text": {"source": text}, "steps": 3} for text in ("c4", "mine.txt", "c4")]
    provenance = {"calibration": {"source": "wikitext2"}, "healing": healing}
    sources = calibration_sources(provenance)
    assert healing_sources(provenance) == ["c4", "mine.txt"]
    assert sources == ["wikitext2", "c4", "mine.txt"]
    with pytest.raises(InputError, match="calibrated or healed on wikitext2 and c4: name other"):
        heldout_corpora([], sources, healed=True)
    twice = {**provenance, "calibration": {"source": "c4"}}
    assert calibration_sources(twice) == ["c4", "mine.txt"]
    assert healing_sources({"calibration": {"source": "c4"}}) == []


def test_two_of_one_name() -> None:
    with pytest.raises(InputError, match=r"two corpora x.txt: .* other=b/x.txt"):
        heldout_corpora(["a/x.txt", "b/x.txt"], [])


def test_what_was_calibrated_on(work: Path) -> None:
    sources = calibration_sources({"calibration": {"source": "texts/a.txt"}})
    assert is_calibrated_on(Corpus("mine", str(work / "texts" / "a.txt")), sources)
    assert is_calibrated_on(Corpus("a.txt", "elsewhere/a.txt"), sources)
    assert not is_calibrated_on(Corpus("mine", "elsewhere/a.txt"), sources)
    parts = {"source": "c4:1,b.txt:2", "parts": [{"source": "c4"}, {"source": "b.txt"}]}
    sources = calibration_sources({"calibration": parts})
    assert is_calibrated_on(parse_corpus("c4@train"), sources)
    assert is_calibrated_on(parse_corpus("c4=local.jsonl"), sources)
    assert not is_calibrated_on(parse_corpus("wikitext2"), sources)
