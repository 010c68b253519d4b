"""Local files: every format gives the documents that were written, every flaw a clear message."""

import json
from pathlib import Path

import pandas
import pytest

from grasp_deploy.data import read_documents
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
        read_documents(str(path), split, column)
    text = str(caught.value)
    assert "\n" not in text
    assert ";" in text, "what and why, then what to do"
    return text


@pytest.fixture(params=[".jsonl", ".json", ".csv", ".parquet"])
def suffix(request: pytest.FixtureRequest) -> str:
    return request.param


def test_rows_are_documents(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"corpus{suffix}", DOCUMENTS)
    assert read_documents(str(path)) == DOCUMENTS


def test_suffix_in_capitals(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"corpus{suffix}", DOCUMENTS)
    path = path.rename(tmp_path / f"CORPUS{suffix.upper()}")
    assert read_documents(str(path)) == DOCUMENTS


def test_the_only_column_of_strings_or_the_named_one(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"corpus{suffix}", DOCUMENTS, column="body")
    assert read_documents(str(path)) == DOCUMENTS
    assert read_documents(str(path), column="body") == DOCUMENTS


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
    assert read_documents(str(path), split) == documents[kept]


@pytest.mark.parametrize(
    "value",
    [
        ["a", "b"],
        {"data": ["a", "b"]},
        {"data": [{"text": "a"}, {"text": "b"}]},
        {"text": ["a", "b"]},
    ],
)
def test_shapes_of_json(tmp_path: Path, value: object) -> None:
    path = tmp_path / "corpus.json"
    path.write_text(json.dumps(value))
    assert read_documents(str(path)) == ["a", "b"]


@pytest.mark.parametrize("name", ["book.txt", "wiki.test.raw", "README", "page.md"])
def test_plain_text_is_one_document(tmp_path: Path, name: str) -> None:
    text = "\ufeffA line.\n\n\nAnother line.\n"
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_documents(str(tmp_path / name), "train") == [text[1:]]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "wikitext-2 does not exist; give wikitext2, ptb, c4, hf:NAME, or a file" in message(
        tmp_path / "wikitext-2"
    )
    assert "is a folder, not a file; give" in message(tmp_path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_empty_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert message(tmp_path / name).endswith("is empty; give a file with text in it")


def test_no_text_in_the_file_or_the_slice(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n ")
    assert "a.txt is empty: it holds no text; give another" in message(tmp_path / "a.txt")
    path = write(tmp_path / "a.jsonl", DOCUMENTS)
    assert message(path, "train[5:]").startswith("split 'train[5:]' of ")


@pytest.mark.parametrize("name", ["model.safetensors", "a.jsonl", "a.json", "a.csv"])
def test_not_text(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"abc\x89PNG\xff")
    assert f"{name} is not text: its byte 3 is not UTF-8; give plain text" in message(
        tmp_path / name
    )
    (tmp_path / name).write_bytes(b"abc\0def")
    assert f"{name} is not text: it holds NUL bytes; give plain text" in message(tmp_path / name)


def test_not_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no, not really")
    assert "a.parquet is not a readable Parquet file" in message(tmp_path / "a.parquet")


def test_not_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\none\ntwo,2\n")
    assert "a.csv is not valid CSV: Error tokenizing data" in message(tmp_path / "a.csv")


def test_not_json(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n{"text": \n')
    assert "a.jsonl is not valid JSON in line 3: Expecting value; mend" in message(
        tmp_path / "a.jsonl"
    )
    (tmp_path / "a.json").write_text('[{"text": "a"},\n\n{"text": ]')
    assert "a.json is not valid JSON in line 3: Expecting value" in message(tmp_path / "a.json")


@pytest.mark.parametrize("value", [3, {"text": "a"}, [["a"]], ["a", {"text": "b"}], {}])
def test_json_without_documents(tmp_path: Path, value: object) -> None:
    (tmp_path / "a.json").write_text(json.dumps(value))
    assert "a.json holds no list of documents; each must be" in message(tmp_path / "a.json")


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


def test_csv_rows_longer_than_the_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,source\n"one","a","x"\n"two","b","x"\n')
    assert "a.csv is not valid CSV: Length of header" in message(tmp_path / "a.csv")


def test_halves_of_surrogate_pairs_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud800 b"}\n')
    (text,) = read_documents(str(tmp_path / "a.jsonl"))
    assert text == "a \ufffd b"


def test_csv_numbers_are_text_only_where_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("year,words\n1999,7\n2000,8\n")
    assert read_documents(str(path), column="year") == ["1999", "2000"]
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
