"""A text to calibrate, recover or evaluate on: which one, and which rows and column of it.

    c4                            a corpus (wikitext2, ptb, c4), a local file, or hf:NAME[:CONFIG]
    mine.jsonl@train[:900]        some of its rows, written as in `datasets`
    c4=0.5                        with its weight among several texts, to calibrate on
    self, self:prompts.jsonl      to calibrate on: what the model itself writes, to prompts or not;
                                  without a weight as much as all other texts, and with =0 nothing
    held-out=mine.jsonl@[900:]    with a name, to evaluate on

A path that exists as written is taken whole, even if it holds `=` or `@`.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from grasp_deploy.config.compress_config import OWN
from grasp_deploy.config.option import LARGEST_NUMBER
from grasp_deploy.data.documents import find_corpus
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import kind_of

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|nan|inf")


@dataclass(frozen=True)
class TextSource:
    """A text, the part of it to read, and its share of the sequences among several texts."""

    what: str  # corpus name, path of a local file, hf:NAME[:CONFIG], or self[:PROMPTS]
    split: str | None = None
    column: str | None = None
    weight: float = 1.0
    name: str | None = None

    @property
    def label(self) -> str:
        """The given name, else that of the corpus or file."""
        return self.name or display_name(self.what)

    @property
    def is_own(self) -> bool:
        """True for text that the model itself writes."""
        return self.what.partition(":")[0] == OWN

    @property
    def prompts(self) -> Self | None:
        """The prompts that the model's own text answers, if any are named."""
        what = self.what.partition(":")[2]
        return replace(self, what=what) if self.is_own and what else None

    @property
    def is_local(self) -> bool:
        """True if files of this machine may be read.

        `hf:` reads a folder of the name, if any. By a name without an owner, such as `text`,
        `datasets` reads the working folder.
        """
        read = self.prompts if self.is_own else self
        if read is None or read.what == "ptb":  # which has addresses of its own
            return False
        corpus = find_corpus(read.what)
        return corpus is None or corpus.path.count("/") != 1 or Path(corpus.path).exists()

    def as_dict(self) -> dict[str, str | None]:
        """Provenance for records."""
        return {"source": self.what, "split": self.split, "column": self.column}

    def is_same_text(self, other: str) -> bool:
        """True if `other` names the same corpus or file, whatever the split."""
        corpora = find_corpus(self.what), find_corpus(other)
        if any(corpora):
            return corpora[0] == corpora[1]  # wikitext2 has a name on the hub as well
        with suppress(ValueError):  # a NUL in a name; links never fail
            return os.path.realpath(self.what) == os.path.realpath(other)
        return self.what == other


def calibration_sources(
    texts: Sequence[str], split: str | None = None, column: str | None = None
) -> list[TextSource]:
    """Parse `TEXT[@SPLIT][=WEIGHT]` of each `--calibration`; `split` is for texts that name none.

    Own text without a weight takes half of the sequences, with the weight 0 none. Raises InputError
    for an empty part, another weight that is not positive, a text that is given twice, no text, and
    a `split` if each text names one or is what the model writes.
    """
    sources: list[TextSource] = []
    unweighted: list[TextSource] = []  # sources of the model's own text
    takes_split = False
    for text in texts:
        head, _, number = text.rpartition("=")
        is_weighted = NUMBER.fullmatch(number) and not _is_path(text)
        head, weight = (head, float(number)) if is_weighted else (text, 1.0)
        what, chosen = _what_and_split(head, split, evaluates=False)
        source = TextSource(what, None if what == OWN else chosen, column, weight)
        is_weight = 0 < weight <= LARGEST_NUMBER or (source.is_own and weight == 0)
        takes_split |= what == head != OWN
        rows_of_none = what == OWN and head != OWN  # as in self@[:5]
        if what in ("", f"{OWN}:") or chosen == "" or not is_weight or rows_of_none:
            raise InputError(
                f"--calibration {text!r} lacks a part or a positive weight: write "
                "TEXT@SPLIT=WEIGHT, such as c4, mine.jsonl=0.5 or mine.jsonl@train[:900]; self and "
                "self:PROMPTS@SPLIT are the model's own text"
            )
        rows = source.split or "train"
        if any(o.is_same_text(what) and (o.split or "train") == rows for o in sources):
            raise InputError(f"--calibration names {what} twice: name it once")
        sources.append(source)
        if source.is_own and not is_weighted:
            unweighted.append(source)
    if sum(source.is_own for source in sources if source.weight) > 1:
        raise InputError(
            "--calibration names the model's own text twice: name self or self:PROMPTS once, with "
            "all prompts in one file"
        )
    if not any(source.weight for source in sources):
        raise InputError(
            "--calibration names no text beside self=0: give wikitext2, ptb, c4 or a file, or "
            "leave self=0 out"
        )
    if split and not takes_split:
        raise InputError(
            f"the split {split!r:.60} has no effect on these texts, which name their own: drop it"
        )
    # As much as the given texts together.
    half = sum(source.weight for source in sources if not source.is_own) or 1.0
    return [
        replace(source, weight=half) if source in unweighted else source
        for source in sources
        if source.weight
    ]


def evaluation_source(
    text: str, column: str | None = None, *, option: str = "--data"
) -> TextSource:
    """Parse `[NAME=]TEXT[@SPLIT]`; corpora default to `test` (C4: `validation`).

    Raises InputError, which names `option`, for an empty part.
    """
    named = None if kind_of(text) else re.fullmatch(r"([^/=@]*)=(.*)", text)
    name, rest = named.groups() if named else (None, text)
    what, chosen = _what_and_split(rest, None, evaluates=True)
    if name == "" or not what or chosen == "":
        raise InputError(
            f"{option} {text!r} lacks a part: write NAME=TEXT@SPLIT, such as c4, "
            "mine=heldout.jsonl or wikitext2@validation"
        )
    return TextSource(what, chosen, column, name=name)


def display_name(what: str) -> str:
    """A text as others may see it: without the folders that it lies in."""
    if what.startswith(f"{OWN}:"):
        return f"{OWN}:{display_name(what.removeprefix(f'{OWN}:'))}"
    if not find_corpus(what):
        return Path(what).name
    return f"hf:{Path(what).name}" if what.startswith(("hf:/", "hf:.")) else what


def _is_path(text: str) -> bool:
    """True for a path as it stands, be it of a text or of prompts, whatever signs are in it."""
    return bool(kind_of(text) or kind_of(text.removeprefix(f"{OWN}:")))


def _what_and_split(text: str, default: str | None, evaluates: bool) -> tuple[str, str | None]:
    """Both sides of `TEXT@SPLIT`; a slice of a corpus gets its split, as in `train[:900]`."""
    what, at, chosen = text.rpartition("@")
    split: str | None = chosen
    if not at or _is_path(text):
        what, split = text, default or None
    corpus = find_corpus(what.removeprefix(f"{OWN}:"))
    if corpus and (split is None or split.startswith("[")):
        split = (corpus.evaluation_split if evaluates else "train") + (split or "")
    return what, split
