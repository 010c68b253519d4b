"""The one way to write a text: with its rows, its weight or its name."""

from pathlib import Path

import pytest

from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import TextSource, calibration_sources, evaluation_source
from grasp_deploy.data.source import display_name
from grasp_deploy.errors import InputError

WIKITEXT = "hf:Salesforce/wikitext:wikitext-2-raw-v1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "a=b.txt", "c@d.txt", "e=2"):
        Path(name).write_text("text")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c4", TextSource("c4", "train")),
        ("wikitext2@validation=0.5", TextSource("wikitext2", "validation", weight=0.5)),
        ("ptb@[:9]", TextSource("ptb", "train[:9]")),
        ("a.txt=1e-1", TextSource("a.txt", weight=0.1)),
        ("a.txt=1E3", TextSource("a.txt", weight=1000.0)),
        ("hf:org/name:en@test", TextSource("hf:org/name:en", "test")),
        ("self=2", TextSource("self", weight=2.0)),
        ("self:asks.txt@[:5]", TextSource("self:asks.txt", "[:5]")),
        ("self:c4@[:5]", TextSource("self:c4", "train[:5]")),
        ("a=b.txt", TextSource("a=b.txt")),
        ("c@d.txt", TextSource("c@d.txt")),
        ("e=2", TextSource("e=2")),  # a path that exists as written is taken whole
    ],
)
def test_a_text_to_calibrate_on(text: str, expected: TextSource) -> None:
    assert calibration_sources([text]) == [expected]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        *(
            ([text], f"'{text}' lacks a part or a positive weight")
            for text in ("", "@train", "c4@=1", "c4=0", "c4=nan", "self:")
        ),
        (["self", "a.txt", "self:asks.txt"], "own text twice"),
        (["self@train[:3]"], "lacks a part or a positive weight"),
        *(
            (texts, "twice: name it once")
            for texts in (["c4", "c4@train=2"], ["a.txt", "./a.txt@train"], ["wikitext2", WIKITEXT])
        ),
        (["a\0b", "a\0b@train"], "twice: name it once"),
        ([], "names no text"),
        (["self=0"], "no text beside self=0"),
    ],
)
def test_texts_that_cannot_be(texts: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        calibration_sources(texts)


@pytest.mark.parametrize("name", ["self@home.txt", "self=mine.txt", "self=0"])
def test_a_file_that_is_named_as_own_text_is_a_text(name: str) -> None:
    Path(name).write_text("text")
    for text in (name, f"{name}=3", *([] if name == "self=0" else [f"{name}@[:]"])):
        config = CompressConfig("model", keep=0.5, calibration=(text,))
        assert [s.is_own for s in calibration_sources(config.calibration)] == [False, True], text


def test_split_and_column_are_for_texts_that_name_none() -> None:
    first, second, third = calibration_sources(["c4", "a.txt@[1:]", "a.txt"], "[:9]", "body")
    assert (first.split, second.split, third.split) == ("train[:9]", "[1:]", "[:9]")
    assert {source.column for source in (first, second, third)} == {"body"}


@pytest.mark.parametrize(
    ("text", "expected", "label"),
    [
        ("c4", TextSource("c4", "validation"), "c4"),
        ("hf:org/name@[:9]", TextSource("hf:org/name", "test[:9]"), "hf:org/name"),
        ("folder/x.txt", TextSource("folder/x.txt"), "x.txt"),
        ("mine=x.jsonl@train[9:]", TextSource("x.jsonl", "train[9:]", name="mine"), "mine"),
        ("mine=c@d.txt@train", TextSource("c@d.txt", "train", name="mine"), "mine"),
    ],
)
def test_a_text_to_evaluate_on(text: str, expected: TextSource, label: str) -> None:
    source = evaluation_source(text)
    assert (source, source.label) == (expected, label)


def test_splits_of_a_text_to_evaluate_on() -> None:
    assert evaluation_source("ptb").split == "test"
    assert evaluation_source("a.txt", "body") == TextSource("a.txt", None, "body")


def test_a_split_without_effect_and_an_empty_part() -> None:
    for texts in (["c4@train[:5]", "a.txt@[1:]", "self=0"], ["self"]):
        with pytest.raises(InputError, match="'train' has no effect"):
            calibration_sources(texts, "train")
    for text in ("", "=c4", "mine=", "c4@"):
        with pytest.raises(InputError, match=r"^--text .* lacks a part"):
            evaluation_source(text, option="--text")


@pytest.mark.parametrize(
    ("what", "prompts"),
    [
        ("self:asks.txt", "asks.txt"),
        (f"self:{WIKITEXT}", WIKITEXT),
        *((what, None) for what in ("self", "c4", WIKITEXT, "hf:org/name", "a:b.txt")),
    ],
)
def test_only_own_text_answers_prompts(what: str, prompts: str | None) -> None:
    found = TextSource(what).prompts
    assert (found and found.what) == prompts


def test_a_text_is_shown_without_its_folders() -> None:
    shown = {"c4": "c4", WIKITEXT: WIKITEXT, "a/b.txt": "b.txt", "self:a/b.txt": "self:b.txt"}
    shown |= {"hf:/home/me/name:en": "hf:name:en", "hf:../name": "hf:name"}
    assert {what: display_name(what) for what in shown} == shown


def test_the_same_text_under_other_names(folder: Path) -> None:
    assert TextSource("wikitext2").is_same_text(WIKITEXT)
    assert TextSource("a.txt").is_same_text(str(folder / "a.txt"))
    assert not TextSource("a.txt").is_same_text("wikitext2")


def test_what_reads_files_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` takes the name of a folder for that folder, and `text` for all files of here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner/name").mkdir(parents=True)
    (tmp_path / "text").mkdir()
    local = ("mine.txt", "self:self:mine.txt", "hf:owner/name", "hf:text", "hf:json:en")
    for what in (*local, f"hf:{tmp_path}"):
        assert TextSource(what).is_local and TextSource(f"self:{what}").is_local, what
    for what in ("self", "c4", "ptb", "wikitext2", "hf:owner/other", "hf:owner/other:text"):
        assert not TextSource(what).is_local, what
    assert not TextSource("self:c4").is_local and not TextSource("self:ptb").is_local
