"""Documents of a local file: rows of JSON, CSV or Parquet, or plain text read whole."""

from __future__ import annotations

import json
import stat
import warnings
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from grasp_deploy.data.table import Columns, as_columns, parse_split, slice_bound, texts_of
from grasp_deploy.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMATS = "plain text in UTF-8, .jsonl, .json, .csv or .parquet"


def local_documents(
    path: Path,
    split: str | None,
    column: str | None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[str]:
    """The documents of a file, sliced by `split`; the file counts as its own split `train`.

    Errors: InputError for a file that is missing, unreadable or not of its format, another
    split's name, a slice of plain text, and a missing column.
    """
    try:
        kind = path.stat().st_mode
    except (OSError, ValueError):  # ValueError: a NUL in the name
        kind = 0
    if not stat.S_ISREG(kind):
        what = "is a folder, not a file" if stat.S_ISDIR(kind) else "is no regular file"
        what = what if kind else "does not exist"
        raise InputError(f"{path} {what}; give wikitext2, ptb, c4, hf:NAME, or a file: {FORMATS}")
    if not path.stat().st_size:
        raise InputError(f"{path} is empty; give a file with text in it")
    name, start, stop = parse_split(split or "")
    if name not in ("", "train", path.name, path.stem):
        raise InputError(
            f"{path} has no split {name!r}: a local file is one split, 'train'; write "
            "train[START:STOP] to take some of its rows, or pass the file of that split"
        )
    reader = READERS.get(path.suffix.lower())
    if reader is None and (start or stop):
        raise InputError(
            f"split {split!r} of {path} is impossible: plain text is one document, read whole; "
            "leave the slice out, or store the documents as .jsonl"
        )
    columns = reader(path, column) if reader else {"text": [_read_text(path)]}
    texts = texts_of(columns, column, path, tokenizer)
    return texts[slice_bound(start, len(texts)) : slice_bound(stop, len(texts))]


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not text: its byte {error.start} is not UTF-8; give {FORMATS}"
        ) from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}; mend that or give another file"
        ) from error
    if "\0" in text:
        raise InputError(f"{path} is not text: it holds NUL bytes; give {FORMATS}")
    return text


def json_lines(path: Path) -> dict[int, object]:
    """The values of a file of JSON lines by their line's number, counted from 1.

    Blank lines are skipped. Errors: InputError for a file that is no text, or a line that is no
    JSON.
    """
    # Not splitlines(): JSON strings may hold U+2028, which it takes for the end of a line.
    lines = enumerate(_read_text(path).split("\n"), start=1)
    return {number: _parse(line, path, number) for number, line in lines if line.strip()}


def _read_jsonl(path: Path, column: str | None) -> Columns:
    return as_columns(list(json_lines(path).values()), path)


def _read_json(path: Path, column: str | None) -> Columns:
    """A list of objects or of strings, the same under "data", or an object of columns."""
    value = _parse(_read_text(path), path, 1)
    if isinstance(value, dict) and value:
        if list(value) == ["data"]:
            return as_columns(value["data"], path)
        if all(isinstance(values, list) for values in value.values()):
            return value
    return as_columns(value, path)


def _parse(text: str, path: Path, line: int) -> object:
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        if not isinstance(error, json.JSONDecodeError):
            raise InputError(
                f"{path} holds JSON in line {line} that cannot be read ({error}): mend that line"
            ) from error
        raise InputError(
            f"{path} is not valid JSON in line {line + error.lineno - 1}: {error.msg}; mend the "
            "line (.jsonl: one value per line, .json: one in all), or rename the file if it is text"
        ) from error


def _read_csv(path: Path, column: str | None) -> Columns:
    import pandas

    text = _read_text(path)
    try:
        with warnings.catch_warnings(action="error"):  # a row longer than the header is a warning
            # "NA" and empty fields are text; types of whole columns tell which ones are numbers.
            table = pandas.read_csv(
                StringIO(text),
                dtype={column: str} if column else None,
                keep_default_na=False,
                low_memory=False,
                index_col=False,
            )
    except (ValueError, Warning) as error:
        raise InputError(
            f"{path} is not valid CSV: {first_line(error)}; separate by commas, begin "
            "with a line of column names, and quote texts"
        ) from error
    return {str(name): table[name].tolist() for name in table.columns}


def _read_parquet(path: Path, column: str | None) -> Columns:
    from pyarrow import ArrowException, parquet

    wanted = column or "text"
    try:
        names = parquet.read_schema(path).names
        table = parquet.read_table(path, columns=[wanted] if wanted in names else None).to_pydict()
    except (ArrowException, OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"{path} is not a readable Parquet file: {first_line(error)}; write it again"
        ) from error
    return table


READERS = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
