"""Corpora that are fetched: what `datasets` is asked for, and what a user reads without a network.

Where these tests need a corpus, `datasets` itself reads it from files; the one stand-in records
the arguments for the named corpora, which no test may download.
"""

import gzip
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import pytest
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

from grasp_deploy.data import TextSource
from grasp_deploy.data.blocks import read_documents
from grasp_deploy.data.documents import Corpus, remote_documents
from grasp_deploy.errors import InputError


@pytest.fixture(autouse=True)
def private_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def lines(tmp_path: Path) -> Corpus:
    """A small corpus of plain text, whose lines are documents."""
    (tmp_path / "train.txt").write_text(" one <unk> \n two \n three \n")
    (tmp_path / "test.txt").write_text(" four \n")
    files = {name: str(tmp_path / f"{name}.txt") for name in ("train", "test")}
    return Corpus("text", data_files=files)


@pytest.fixture
def stream(tmp_path: Path) -> Corpus:
    """Ten documents, of which five are read unless told otherwise."""
    file = tmp_path / "part.json.gz"
    rows = [json.dumps({"text": f"document {index}", "url": "x"}) for index in range(10)]
    file.write_bytes(gzip.compress("\n".join(rows).encode()))
    return Corpus("json", data_files={"train": str(file)}, streamed_documents=5)


def test_splits_are_those_of_datasets(lines: Corpus, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "grasp_deploy.data")
    assert remote_documents(lines, "x", "train", None)[1] == [" one <unk> ", " two ", " three "]
    assert caplog.messages, "a slice does not say that all is fetched"
    assert remote_documents(lines, "x", "train[1:]", "text")[1] == [" two ", " three "]
    assert remote_documents(lines, "x", "test", None)[1] == [" four "]
    # As the loading script of Penn Treebank stripped them.
    assert remote_documents(lines, "ptb", "train", None)[1] == ["one <unk>", "two", "three"]


def test_a_stream_is_read_from_its_start(stream: Corpus) -> None:
    for split, first, last in (("train", 0, 5), ("train[2:8]", 2, 8), ("train[7:]", 7, 10)):
        expected = [f"document {number}" for number in range(first, last)]
        assert remote_documents(stream, "c4", split, None) == ("text", expected)
    assert len(remote_documents(stream, "c4", "train", None, needed=8 * 250)[1]) == 8


def test_splits_and_columns_that_a_corpus_lacks(lines: Corpus, stream: Corpus) -> None:
    with pytest.raises(InputError, match=r"'dev' cannot be loaded: Unknown split.*; check its"):
        remote_documents(lines, "hf:x", "dev", None)
    with pytest.raises(InputError, match="hf:x has no column 'body'; its columns are: text"):
        remote_documents(lines, "hf:x", "train", "body")
    damaged = lines.data_files["test"].replace("test.txt", "a.jsonl")  # type: ignore[index]
    Path(damaged).write_text('{"text": ')
    with pytest.raises(InputError, match="cannot be loaded: JSON parse error"):
        remote_documents(Corpus("json", data_files={"train": damaged}), "x", "train", None)
    for source in ("hf:", "hf:/"):
        with pytest.raises(InputError, match="names no dataset; write hf:NAME or hf:NAME:CONFIG"):
            read_documents(TextSource(source))
    for split, told in {
        **dict.fromkeys(("train[:10%]", "train[-5:]", "train[:-2]"), "count rows from its start"),
        **dict.fromkeys(("train[5:5]", "train[9:5]", "train[10:]"), "there are no such rows"),
    }.items():
        with pytest.raises(InputError, match=rf"c4 with split .* cannot be loaded: .*{told}.*;"):
            remote_documents(stream, "c4", split, None)


@pytest.mark.parametrize("broken", [HTTPError, EOFError, ImportError])
def test_a_connection_that_breaks_or_cannot_be(
    lines: Corpus, monkeypatch: pytest.MonkeyPatch, broken: type[Exception]
) -> None:
    monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=broken("gone")))
    with pytest.raises(InputError, match="hf:x"):
        remote_documents(lines, "hf:x", "train", None)


@pytest.mark.parametrize(
    ("source", "split", "expected"),
    [
        ("wikitext2", None, {"path": "Salesforce/wikitext", "name": "wikitext-2-raw-v1"}),
        ("c4", "validation[:1]", {"path": "allenai/c4", "name": None, "streaming": True}),
        ("hf:org/name:config", None, {"path": "org/name", "name": "config"}),
    ],
)
def test_what_datasets_is_asked_for(
    source: str, split: str | None, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def load_dataset(path: str, name: str | None, **options: Any) -> datasets.Dataset:
        asked.update(path=path, name=name, **options)
        return datasets.Dataset.from_dict({"text": ["a document"]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read_documents(TextSource(source, split)) == ["a document"]
    files, name = asked.pop("data_files"), asked.pop("split")
    assert asked == expected
    assert name == ("validation" if source == "c4" else split or "train")
    assert not files or name in files, "the default splits must exist"
