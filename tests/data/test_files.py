"""Local files: every format gives the documents that were written, every flaw a clear message."""

import json
import tempfile
from pathlib import Path

import datasets
import pandas
import pytest

from grasp_deploy.data import TextSource, read_documents
from grasp_deploy.errors import InputError

# A line separator within a string, a NUL-free oddity and a quoted comma must survive.
DOCUMENTS = ["first\nof two lines", "second, with “quotes” and \u2028", "NA", "", "fifth"]


def write(path: Path, documents: list[str], column: str = "text") -> Path:
    rows = [{"id": index, column: document} for index, document in enumerate(documents)]
    if path.suffix == ".jsonl":
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".csv":
        pandas.DataFrame(rows).to_csv(path, index=False)
    else:
        pandas.DataFrame(rows).to_parquet(path)
    return path


def message(path: Path, split: str | None = None, column: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        read_documents(TextSource(str(path), split, column))
    text = str(caught.value)
    assert "\n" not in text
    assert ";" in text, "what and why, then what to do"
    return text


@pytest.fixture(params=[".jsonl", ".json", ".csv", ".parquet"])
def suffix(request: pytest.FixtureRequest) -> str:
    return request.param


def test_rows_are_documents(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"corpus{suffix}", DOCUMENTS)
    assert read_documents(TextSource(str(path))) == DOCUMENTS


def test_suffix_in_capitals(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.jsonl", DOCUMENTS).rename(tmp_path / "CORPUS.JSONL")
    assert read_documents(TextSource(str(path))) == DOCUMENTS


def test_the_only_column_of_strings_or_the_named_one(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"corpus{suffix}", DOCUMENTS, column="body")
    assert read_documents(TextSource(str(path))) == DOCUMENTS
    assert read_documents(TextSource(str(path), column="body")) == DOCUMENTS


@pytest.mark.parametrize(
    ("split", "kept"),
    [
        ("train", slice(None)),
        ("", slice(None)),
        ("train[:2]", slice(0, 2)),
        ("[2:]", slice(2, 5)),
        ("train[-2:]", slice(3, 5)),
        ("train[20%:60%]", slice(1, 3)),
        ("[:900]", slice(None)),
        ("corpus.jsonl[4:]", slice(4, 5)),
        ("corpus", slice(None)),
    ],
)
def test_splits(tmp_path: Path, split: str, kept: slice) -> None:
    documents = [f"document {index}" for index in range(5)]
    path = write(tmp_path / "corpus.jsonl", documents)
    assert read_documents(TextSource(str(path), split)) == documents[kept]


def test_json_may_be_a_list_of_strings(tmp_path: Path) -> None:
    (tmp_path / "corpus.json").write_text(json.dumps(["a", "b"]))
    assert read_documents(TextSource(str(tmp_path / "corpus.json"))) == ["a", "b"]


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        (['"a"', "", '"b"'], ["a", "b"]),  # lines of strings
        (['{"text": "2020-01-01"}'], ["2020-01-01"]),  # text that looks like a date
        (['{"text": "a\\ud83d"}'], ["a\ufffd"]),  # half of a surrogate pair
        # A column beside the text that changes its type late in the file.
        (['{"text": "a", "n": 1}'] * 99_999 + ['{"text": "b", "n": "x"}'], ["a"] * 99_999 + ["b"]),
    ],
)
def test_json_lines_need_no_schema(tmp_path: Path, rows: list[str], texts: list[str]) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    assert read_documents(TextSource(str(tmp_path / "a.jsonl"))) == texts


def test_json_may_be_columns(tmp_path: Path) -> None:
    for name, value in ("a.json", {"text": ["a", "b"]}), ("b.json", {"data": ["a", "b"]}):
        (tmp_path / name).write_text(json.dumps(value))
        assert read_documents(TextSource(str(tmp_path / name))) == ["a", "b"]


def test_a_name_with_brackets_is_no_pattern(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus[1]*.jsonl", DOCUMENTS)
    assert read_documents(TextSource(str(path))) == DOCUMENTS


def test_nothing_is_left_and_nothing_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = write(tmp_path / "a.jsonl", DOCUMENTS)
    before = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    read_documents(TextSource(str(path)))
    (tmp_path / "b.jsonl").write_text("{")
    message(tmp_path / "b.jsonl")
    assert (datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()) == before
    assert capfd.readouterr() == ("", "")
    assert {entry.name for entry in tmp_path.rglob("*")} == {"a.jsonl", "b.jsonl", "temporary"}


@pytest.mark.parametrize("name", ["book.txt", "README"])
def test_plain_text_is_one_document(tmp_path: Path, name: str) -> None:
    text = "\ufeffA line.\n\n\nAnother line.\n"
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_documents(TextSource(str(tmp_path / name), "train")) == [text[1:]]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "wikitext-2 does not exist; give wikitext2, ptb, c4, hf:NAME, or a file" in message(
        tmp_path / "wikitext-2"
    )
    assert "is not a regular file; give" in message(tmp_path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_empty_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert message(tmp_path / name).endswith("is empty; give a file with text in it")


def test_no_text_in_the_file_or_the_slice(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n ")
    assert "a.txt is empty: it holds no text; give another" in message(tmp_path / "a.txt")
    path = write(tmp_path / "a.jsonl", DOCUMENTS)
    assert message(path, "train[5:]").startswith("split 'train[5:]' of ")


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"abc\x89PNG\xff")
    assert f"{path.name} is not text: its byte 3 is not UTF-8; give plain text" in message(path)
    path.write_bytes(b"abc\0def")
    assert f"{path.name} is not text: it holds NUL bytes; give plain text" in message(path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', "JSON: line 3: Expecting value"),
        ("a.jsonl", b"[" * 10_000 + b"]" * 10_000, "JSON: line 1: maximum recursion depth"),
        ("a.jsonl", b"abc\x89PNG\xff", "is not text: its byte 3 is not UTF-8"),
        ("a.json", b'[{"text": "a"},\n\n{"text": ]', "JSON: line 3: Expecting value"),
        ("a.csv", b"text\n", "CSV: it has no rows"),
        ("a.csv", b"abc\x89PNG\xff", "CSV: 'utf-8' codec can't decode byte 0x89"),
        ("a.csv", b"text\none\ntwo,2\n", "CSV: Error tokenizing data"),
        ("a.csv", b'text,source\n"one","a","x"\n', "CSV: Length of header"),
        ("a.parquet", b"PAR1 no, not really", "Parquet: Parquet magic bytes not found"),
    ],
)
def test_not_of_its_format(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert f"{name} is not " in message(tmp_path / name)
    assert words in message(tmp_path / name)


@pytest.mark.parametrize("value", [3, {}, [["a"]], ["a", {"text": "b"}]])
def test_json_without_documents(tmp_path: Path, value: object) -> None:
    (tmp_path / "a.json").write_text(json.dumps(value))
    assert "a.json holds no list of documents; write a list" in message(tmp_path / "a.json")


def test_missing_column(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a{suffix}", DOCUMENTS)
    assert "has no column 'body'; its columns are: id, text; name one of them with" in message(
        path, column="body"
    )


def test_no_or_many_columns_of_strings(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"title": "a", "body": "b", "n": 1}\n')
    assert (
        "has no column 'text' and 2 others of strings; its columns are: title, body, n"
        in message(path)
    )
    path.write_text('{"n": 1}\n')
    assert "has no column 'text' and 0 others of strings; its columns are: n" in message(path)


def test_a_row_without_a_string(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": 7}\n{"other": "c"}\n')
    assert "must hold strings, but row 1 (counted from 0) holds 7; mend that row" in message(path)
    path.write_text('{"text": "a"}\n{"other": "c"}\n')
    assert "but row 1 (counted from 0) holds None" in message(path)


def test_csv_numbers_are_text_only_where_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("year,words\n1999,7\n2000,8\n")
    assert read_documents(TextSource(str(path), column="year")) == ["1999", "2000"]
    assert "0 others of strings" in message(path)


def test_another_split(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", DOCUMENTS)
    assert "has no split 'test': a local file is one split, 'train'; write train[" in message(
        path, "test[:3]"
    )
    assert "split 'train[3]' is not understood; write it as train, train[:900]" in message(
        path, "train[3]"
    )


def test_a_slice_of_plain_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one document")
    assert "is impossible: plain text is one document, read whole; leave the slice out" in message(
        tmp_path / "a.txt", "train[:900]"
    )
