"""Which texts a checkpoint is measured on, and whether it was calibrated or healed on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.card.quality_verdict import seen
from grasp_deploy.data.corpora import find_corpus
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import kind_of

DEFAULT_CORPORA = ("wikitext2", "c4")


@dataclass(frozen=True)
class Corpus:
    """A text as the card names it, where it comes from, and the part of it that is read."""

    name: str
    source: str
    split: str | None = None


def parse_corpus(text: str) -> Corpus:
    """The corpus that `[NAME=]SOURCE[@SPLIT]` means; a file's own name is its name by default.

    A file that is really called so is taken before any `=` or `@` in it means something. Raises
    InputError if a part is empty.
    """
    named = re.fullmatch(r"([^/=@]*)=(.*)", text) if kind_of(text) != "file" else None
    name, rest = named.groups() if named else (None, text)
    source, split = rest, None
    if "@" in rest and kind_of(rest) != "file":
        source, _, split = rest.rpartition("@")
    if name == "" or not source or split == "":
        raise InputError(
            f"--data {text!r} lacks a part: write NAME=SOURCE@SPLIT, such as c4, "
            "mine=heldout.jsonl or wikitext2@validation"
        )
    return Corpus(name or display_name(source), source, split)


def heldout_corpora(
    data: Sequence[str], calibrated: Sequence[str], healed: bool = False
) -> list[Corpus]:
    """The corpora that `--data` names; by default WikiText-2 and C4, less what was calibrated on.

    `healed`: whether some of that was healed on. Raises InputError for what cannot be read, for two
    corpora of one name, and if none is left.
    """
    corpora = [parse_corpus(text) for text in data]
    if not data:
        defaults = [Corpus(name, name) for name in DEFAULT_CORPORA]
        corpora = [corpus for corpus in defaults if not is_calibrated_on(corpus, calibrated)]
    if not corpora:
        raise InputError(
            f"the model was {seen(healed)} {' and '.join(DEFAULT_CORPORA)}: name other text "
            "with --data"
        )
    for index, corpus in enumerate(corpora):
        if corpus.name in [other.name for other in corpora[:index]]:
            raise InputError(
                f"--data names two corpora {corpus.name}: give one another name, as in "
                f"other={corpus.source}"
            )
    return corpora


def calibration_sources(provenance: Mapping[str, Any]) -> list[str]:
    """The sources of text that a plan was calibrated or healed on, as they were given."""
    sources = [*_sources(provenance["calibration"]), *healing_sources(provenance)]
    return list(dict.fromkeys(sources))


def healing_sources(provenance: Mapping[str, Any]) -> list[str]:
    """The sources of text that a checkpoint was healed on; none if it was not healed."""
    texts = [healing["text"] for healing in provenance.get("healing", [])]
    return list(dict.fromkeys(source for text in texts for source in _sources(text)))


def _sources(text: Mapping[str, Any]) -> list[str]:
    """The one source of a text, or its several."""
    return [part["source"] for part in text.get("parts") or [text]]


def is_calibrated_on(corpus: Corpus, sources: Sequence[str]) -> bool:
    """Whether a corpus is one of these sources, whichever split of it, or is called like one."""
    return any(
        corpus.name == display_name(source) or _is_same(corpus.source, source) for source in sources
    )


def display_name(source: str) -> str:
    """A source as others may see it: without the folders that it lies in."""
    return source if find_corpus(source) else Path(source).name


def _is_same(source: str, other: str) -> bool:
    corpora = find_corpus(source), find_corpus(other)
    if any(corpora):
        return corpora[0] == corpora[1]  # wikitext2 has a name on the hub as well
    return Path(source).resolve() == Path(other).resolve()
