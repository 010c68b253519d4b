"""Corpora that are fetched: what `datasets` is asked for, and what a user reads without a network.

Where these tests need a corpus, `datasets` itself reads it from files; the one stand-in records
the arguments for the named corpora, which no test may download.
"""

import gzip
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest

from grasp_deploy.data import TextSource, corpora, read_documents
from grasp_deploy.data.corpora import Corpus, remote_documents
from grasp_deploy.errors import InputError


@pytest.fixture(autouse=True)
def private_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A host that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/"


def text_corpus(folder: Path) -> Corpus:
    (folder / "train.txt").write_text(" one <unk> \n two \n three \n")
    (folder / "test.txt").write_text(" four \n")
    files = {name: str(folder / f"{name}.txt") for name in ("train", "test")}
    return Corpus("text", data_files=files, address=(folder / "test.txt").as_uri())


def streamed_corpus(folder: Path) -> Corpus:
    """Ten documents of which the stand-in for C4 reads five unless told otherwise."""
    with gzip.open(folder / "part.json.gz", "wt") as file:
        for index in range(10):
            file.write(json.dumps({"text": f"document {index}", "url": "x"}) + "\n")
    files = {"train": str(folder / "part.json.gz")}
    address = (folder / "part.json.gz").as_uri()
    return Corpus("json", data_files=files, address=address, streamed_documents=5)


def test_splits_are_those_of_datasets(tmp_path: Path) -> None:
    corpus = text_corpus(tmp_path)
    assert remote_documents(corpus, "x", "train", None) == [" one <unk> ", " two ", " three "]
    assert remote_documents(corpus, "x", "train[1:]", "text") == [" two ", " three "]
    assert remote_documents(corpus, "x", "test", None) == [" four "]


def test_penn_treebank_is_stripped_as_its_loading_script_did(tmp_path: Path) -> None:
    corpus = text_corpus(tmp_path)
    assert remote_documents(corpus, "ptb", "train", None) == ["one <unk>", "two", "three"]


@pytest.mark.parametrize(
    ("split", "numbers"),
    [
        ("train", range(5)),
        ("train[:2]", range(2)),
        ("train[:8]", range(8)),
        ("train[2:4]", range(2, 4)),
        ("train[7:]", range(7, 10)),
    ],
)
def test_a_stream_is_read_from_its_start(tmp_path: Path, split: str, numbers: range) -> None:
    documents = remote_documents(streamed_corpus(tmp_path), "c4", split, None)
    assert documents == [f"document {number}" for number in numbers]


@pytest.mark.parametrize("split", ["train[:10%]", "train[-5:]"])
def test_a_stream_has_no_end(tmp_path: Path, split: str) -> None:
    with pytest.raises(InputError, match=r"read as a stream.*; count documents from the start"):
        remote_documents(streamed_corpus(tmp_path), "c4", split, None)


def test_unknown_split_and_column(tmp_path: Path) -> None:
    corpus = text_corpus(tmp_path)
    with pytest.raises(
        InputError, match=r"'dev' cannot be loaded: Unknown split.*; check its name"
    ):
        remote_documents(corpus, "hf:x", "dev", None)
    with pytest.raises(InputError, match="hf:x has no column 'body'; its columns are: text"):
        remote_documents(corpus, "hf:x", "train", "body")
    streamed = streamed_corpus(tmp_path)
    with pytest.raises(InputError, match="cannot be loaded"):
        remote_documents(streamed, "c4", "validation", None)


@pytest.mark.parametrize(
    ("source", "split", "expected"),
    [
        ("wikitext2", None, {"path": "Salesforce/wikitext", "name": "wikitext-2-raw-v1"}),
        ("ptb", "test", {"path": "text", "name": None}),
        ("c4", "validation[:1]", {"path": "allenai/c4", "name": None, "streaming": True}),
        ("hf:org/name", "dev[:1]", {"path": "org/name", "name": None}),
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
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)  # leaves out the look at the host
    assert read_documents(TextSource(source, split)) == ["a document"]
    files = asked.pop("data_files")
    name = asked.pop("split")
    assert asked == expected
    assert name == ("validation" if source == "c4" else split or "train")
    if files:
        assert name in files, "the default splits must exist"
        assert all(file.endswith((".txt", ".json.gz")) for file in files.values())
        assert len(set(files.values())) == len(files)


@pytest.mark.parametrize("source", ["wikitext2", "ptb", "c4", "hf:org/name"])
def test_no_network(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", closed_port())
    monkeypatch.setitem(corpora.CORPORA, "ptb", Corpus("text", address=closed_port()))
    started = time.perf_counter()
    with pytest.raises(InputError) as caught:
        read_documents(TextSource(source))
    assert time.perf_counter() - started < corpora.REACH_SECONDS
    text = str(caught.value)
    assert text.startswith(f"{source} cannot be fetched: 127.0.0.1:")
    assert "is unreachable ([Errno 111] Connection refused); pass a local file instead" in text
    assert "--calibration FILE" in text
    assert "HF_HUB_OFFLINE=1" in text


def test_a_host_that_never_answers(silent_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "REACH_SECONDS", 0.3)
    started = time.perf_counter()
    with pytest.raises(InputError, match=r"is unreachable.*timed out.*; pass a local file"):
        remote_documents(Corpus("text", address=silent_server), "ptb", "train", None)
    assert time.perf_counter() - started < 15, "it gives up by itself, and does not try again"


def test_offline_mode_looks_in_the_cache_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    started = time.perf_counter()
    with pytest.raises(InputError, match=r"unreachable \(Couldn't reach .*; pass a local file"):
        read_documents(TextSource("hf:org/name"))
    assert time.perf_counter() - started < 15, "it does not try again"


def test_hf_without_a_name() -> None:
    with pytest.raises(InputError, match="names no dataset; write hf:NAME or hf:NAME:CONFIG"):
        read_documents(TextSource("hf:"))
