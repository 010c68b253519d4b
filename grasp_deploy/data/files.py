"""Documents of a local file: rows of JSON, CSV or Parquet, or plain text read whole."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from grasp_deploy.data.table import Columns, parse_split, slice_bound, texts_of
from grasp_deploy.errors import InputError, first_line
from grasp_deploy.files.disk import kind_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMATS = "plain text in UTF-8, .jsonl, .json, .csv or .parquet"
JSON = {
    ".jsonl": "write one object per line",
    ".json": "write a list of objects or of strings",
}
TABLES = {
    ".csv": ("CSV", "separate by commas, begin with a line of column names, and quote texts"),
    ".parquet": ("Parquet", "write it again"),
}


def local_documents(
    path: Path,
    split: str | None,
    column: str | None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[str]:
    """The documents of a file, sliced by `split`; the file counts as its own split `train`.

    Raises InputError for a file that is missing, empty or not of its format, another split's name,
    a slice of plain text, and a missing column.
    """
    name, start, stop = parse_split(split or "")
    kind = kind_of(path)
    if kind != "file":
        what = "is not a regular file" if kind else "does not exist"
        raise InputError(f"{path} {what}; give wikitext2, ptb, c4, hf:NAME, or a file: {FORMATS}")
    if not path.stat().st_size:
        raise InputError(f"{path} is empty; give a file with text in it")
    if name not in ("", "train", path.name, path.stem):
        raise InputError(
            f"{path} has no split {name!r}: a local file is one split, 'train'; write "
            "train[START:STOP] to take some of its rows, or pass the file of that split"
        )
    suffix, texts = path.suffix.lower(), None
    if suffix in JSON:
        texts = texts_of(_json_columns(path), column, path, tokenizer)
    elif suffix in TABLES:
        with _table(path, column) as table:
            columns = {name: table[name] for name in table.column_names}
            texts = texts_of(columns, column, path, tokenizer)
    if texts is not None:
        return texts[slice_bound(start, len(texts)) : slice_bound(stop, len(texts))]
    if start or stop:
        raise InputError(
            f"split {split!r} of {path} is impossible: plain text is one document, read whole; "
            "leave the slice out, or store the documents as .jsonl"
        )
    return texts_of({"text": [read_plain_text(path)]}, column, path)


def read_plain_text(path: Path) -> str:
    """The whole of a UTF-8 file; InputError for a file that cannot be read as text."""
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


def _json_columns(path: Path) -> Columns:
    """Columns of JSON lines, of one list of objects or strings, or of one object of lists.

    `datasets` would guess types from the first rows. It refuses a file for a column beside the text
    that changes its type, and takes texts that look like dates for dates.
    """
    rows = _json_rows(path)
    if isinstance(rows, list):
        if all(isinstance(row, str) for row in rows):
            return {"text": rows}
        if all(isinstance(row, dict) for row in rows):
            names = dict.fromkeys(name for row in rows for name in row)
            return {name: [row.get(name) for row in rows] for name in names}
    elif isinstance(rows, dict) and rows and all(isinstance(v, list) for v in rows.values()):
        return rows
    raise InputError(f"{path} holds no list of documents; {JSON[path.suffix.lower()]}")


def _json_rows(path: Path) -> Any:
    """The values of all lines of a .jsonl file, or the one value of a .json file."""
    text = read_plain_text(path)
    if path.suffix.lower() == ".json":
        rows = _parsed(text, path, 1)
        return rows["data"] if isinstance(rows, dict) and list(rows) == ["data"] else rows
    # Not splitlines(): JSON strings may hold U+2028, which it takes for the end of a line.
    lines = enumerate(text.split("\n"), start=1)
    return [_parsed(line, path, number) for number, line in lines if line.strip()]


def _parsed(text: str, path: Path, line: int) -> Any:
    """The value of a JSON text that begins in this line of the file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line, reason = line + error.lineno - 1, error.msg
    except (RecursionError, ValueError) as error:  # too deep, or a number of too many digits
        reason = first_line(error)
    remedy = JSON[path.suffix.lower()]
    raise InputError(f"{path} is not valid JSON: line {line}: {reason}; {remedy}")


@contextmanager
def _table(path: Path, column: str | None) -> Iterator[Any]:
    """Read a file with `datasets`, whose cache lasts as long as the context."""
    from datasets.exceptions import DatasetsError

    kind, remedy = TABLES[path.suffix.lower()]
    with TemporaryDirectory(prefix="grasp-deploy-text-") as folder:
        link = Path(folder) / "file"  # `datasets` takes brackets in a name for a pattern
        link.symlink_to(path.resolve())
        try:
            with _quiet_datasets():
                table = _read(kind, str(link), str(Path(folder) / "cache"), column)
        except (OSError, ValueError, Warning, StopIteration, DatasetsError) as error:
            reason = _reason(error)
            raise InputError(f"{path} is not valid {kind}: {reason}; {remedy}") from error
        yield table


@contextmanager
def _quiet_datasets() -> Iterator[None]:
    """Draw no progress bars and log nothing: the caller reports errors once."""
    import datasets

    bars, verbosity = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if not bars:
            datasets.enable_progress_bars()


def _read(kind: str, path: str, cache: str, column: str | None) -> Any:
    from datasets import Dataset
    from pandas.errors import ParserWarning

    if kind == "Parquet":
        return Dataset.from_parquet(path, cache_dir=cache)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=ParserWarning)  # a row longer than the header
        return Dataset.from_csv(
            path,
            cache_dir=cache,
            index_col=False,
            keep_default_na=False,  # "NA" and empty fields are text
            converters={column: str} if column else None,
        )


def _reason(error: BaseException) -> str:
    """The first line of the first error: `datasets` wraps it, and may try a second reader."""
    while cause := error.__cause__ or error.__context__:
        error = cause
        if type(error).__name__ == "ArrowInvalid":
            break
    reason = first_line(error)
    return "it has no rows" if reason.endswith("corresponds to no data!") else reason
