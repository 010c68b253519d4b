"""Local files: every format gives the documents that were written, every flaw a clear message."""

import json
from pathlib import Path

import pandas
import pytest

from grasp_deploy.data import TextSource
from grasp_deploy.data.blocks import read_documents
from grasp_deploy.data.documents import TABLES
from grasp_deploy.errors import InputError

# A line separator within a string, a text like a missing value and quoted commas must survive.
DOCUMENTS = ["first\nof two lines", "second, with “quotes” and \u2028", "NA", "", "fifth"]


def write(path: Path, documents: list[str], column: str = "text") -> Path:
    rows = [{"id": index, column: document} for index, document in enumerate(documents)]
    if path.suffix in (".jsonl", ".ndjson", ".jsonlines"):
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".csv":
        pandas.DataFrame(rows).to_csv(path, index=False)
    else:
        pandas.DataFrame(rows).to_parquet(path)
    return path


def read(path: Path, split: str | None = None, column: str | None = None) -> list[str]:
    return read_documents(TextSource(str(path), split, column))


def message(path: Path, split: str | None = None, column: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        read(path, split, column)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("suffix", TABLES)
def test_rows_are_documents(tmp_path: Path, suffix: str) -> None:
    """Of the column `text` or the named one, beside others; the name is no pattern."""
    assert read(write(tmp_path / f"corpus[1]*{suffix}", DOCUMENTS)) == DOCUMENTS
    path = write(tmp_path / f"corpus{suffix}", DOCUMENTS, column="body")
    assert read(path, column="body") == DOCUMENTS
    assert "no column that is named as a text; its columns are: id, body" in message(path)
    assert "no column 'text'" in message(path, column="text")


@pytest.mark.parametrize(
    ("split", "kept"),
    [
        ("train", slice(None)),
        ("[2:]", slice(2, 5)),
        ("train[20%:60%]", slice(1, 3)),
        ("[:900]", slice(None)),
        ("CORPUS.JSONL[4:]", slice(4, 5)),
    ],
)
def test_splits(tmp_path: Path, split: str, kept: slice) -> None:
    documents = [f"document {index}" for index in range(5)]
    path = write(tmp_path / "corpus.jsonl", documents).rename(tmp_path / "CORPUS.JSONL")
    assert read(path, split) == documents[kept]


@pytest.mark.parametrize(
    ("name", "text", "documents"),
    [
        ("a.jsonl", '"a"\n\n"b"', ["a", "b"]),  # lines of strings
        ("a.jsonl", '{"text": "a\\ud83d"}', ["a\ufffd"]),  # half of a surrogate pair
        ("a.jsonl", '{"text": "a"}\n{"other": "c"}', ["a"]),  # a row without one
        # A column beside the text that changes its type.
        ("a.jsonl", '{"text": "a", "n": 1}\n{"text": "b", "n": "x"}', ["a", "b"]),
        ("a.json", '["a", "b"]', ["a", "b"]),
        ("a.csv", "year,text\n1999,7\n", ["7"]),
        ("book.txt", "\ufeffA line.\n\n\nAnother.\n", ["A line.\n\n\nAnother.\n"]),
    ],
)
def test_other_layouts(tmp_path: Path, name: str, text: str, documents: list[str]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read(tmp_path / name, "train") == documents


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"", "is empty"),
        ("a.txt", b" \n ", "is empty"),
        ("a.txt", b"abc\x89PNG\xff", "byte 0x89 in position 3"),
        ("a.txt", b"abc\0def", "NUL bytes"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', "line 3"),
        ("a.jsonl", b"[" * 10_000 + b"]" * 10_000, "valid jsonl"),
        ("a.json", b'[{"text": "a"},\n\n{"text": ]', "line 3"),
        ("a.json", b'["a", {"text": "b"}]', "not all texts"),
        ("a.csv", b'text,source\n"one","a","x"\n', "values by name"),
        ("a.csv", b'text,text\n"one","a"\n', "names a column twice"),
        ("a.csv", b"text;id\none;1\n", "semicolons"),
        ("a.tsv", b"text\tid\none\t1\n", ".csv"),
        ("a.jsonl.gz", b"\x1f\x8b", "unpacked"),
        ("a.parquet", b"PAR1 no, not really", "valid parquet"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 7}', "row 1"),
        ("a.jsonl", b'{"text": null, "other": null}', "text, other"),
    ],
)
def test_not_of_its_format(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert words in message(tmp_path / name)


def test_splits_that_a_file_lacks(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", DOCUMENTS)
    (tmp_path / "a.txt").write_text("one document")
    for split in ("train[5:]", "test[:3]", "train[3]"):
        assert f"'{split.partition('[')[0]}" in message(path, split)
    assert "one document" in message(tmp_path / "a.txt", "train[:900]")
    assert "no columns" in message(tmp_path / "a.txt", column="text")
