"""How sources of calibration text are written: one by itself, or several with their weights.

    c4                          one source, as `read_documents` takes it
    wikitext2:0.5,c4:0.5        two; weights are shares of whatever sum
    a.txt:3,hf:org/name:en:1    the last colon of each stands before its weight

A source ends at the first comma behind a weight, so names may hold commas and colons of their own.
The exact name of a file is that file, whatever it looks like.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from grasp_deploy.data.corpora import CORPORA, Corpus, find_corpus
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import kind_of

FORM = (
    "write SOURCE:WEIGHT,SOURCE:WEIGHT, each weight a positive number, as in wikitext2:0.5,c4:0.5"
)


@dataclass(frozen=True)
class WeightedSource:
    """A source that `read_documents` takes, and its share of the blocks, of whatever sum."""

    name: str
    weight: float


def weighted_sources(text: str) -> list[WeightedSource]:
    """The sources that a text such as `c4` or `wikitext2:0.5,c4:0.5` means.

    Errors: InputError for a source among several that has no weight or none that is a positive
    number, for one that is named twice, for a weight of a source by itself, and for a text that
    can be read in two ways.
    """
    if kind_of(text) or not _is_mixture(text):
        return [WeightedSource(text, 1.0)]
    pieces = _cut(text)
    _refuse_two_readings(text, pieces)
    sources = [_source(text, piece) for piece in pieces]
    if len(sources) == 1:
        raise InputError(
            f"{text!r} is one source with a weight, which only several need: write "
            f"{sources[0].name}"
        )
    _refuse_repeated(sources)
    return sources


def shares(weights: Sequence[float], total: int) -> list[int]:
    """How many of `total` blocks each of some sources gives: at least one, else by its weight.

    What whole shares leave over goes to the largest remainders, to the first of equal ones.
    Errors: InputError where there are fewer blocks than sources.
    """
    if total < len(weights):
        raise InputError(
            f"{total} blocks cannot hold one of each of {len(weights)} sources: use --sequences "
            f"{len(weights)} or more, or fewer sources"
        )
    exact = [Fraction(str(weight)) for weight in weights]  # of the decimal number, so that 0.1 ties
    exact = [weight * total / sum(exact) for weight in exact]
    counts = [max(1, math.floor(share)) for share in exact]
    places = range(len(weights))
    while sum(counts) < total:
        counts[max(places, key=lambda place: exact[place] - counts[place])] += 1
    while sum(counts) > total:  # sources that were raised to one block take it from the largest
        large = [place for place in places if counts[place] > 1]
        counts[min(large, key=lambda place: exact[place] - counts[place])] -= 1
    return counts


def _is_mixture(text: str) -> bool:
    """Whether a text that names no file is meant to have weights in it.

    Without a comma, `hf:NAME:2` is a configuration named 2; with one, any weight tells.
    """
    pieces = text.split(",")
    weighted = any(_weight(piece) is not None for piece in pieces)
    if len(pieces) == 1:
        name = text.rpartition(":")[0]
        return weighted and (name in CORPORA or kind_of(name) is not None)
    return weighted or not text.startswith("hf:")


def _cut(text: str) -> list[str]:
    """The pieces `SOURCE:WEIGHT`; what is left behind the last weight is an error."""
    pieces, begun = [], ""
    for part in text.split(","):
        begun += part
        if _weight(part) is None:
            begun += ","  # a comma of the name
        else:
            pieces.append(begun)
            begun = ""
    if begun:
        raise _without_weight(text, begun)
    return pieces


def _source(text: str, piece: str) -> WeightedSource:
    name, _, _ = piece.rpartition(":")
    weight = _weight(piece)
    assert weight is not None, "pieces end with their weight"
    if not kind_of(name):
        name = name.strip()
        if "," in name:
            raise _without_weight(text, name)
    if not name:
        raise InputError(f"{piece!r} in {text!r} names no source: {FORM}")
    if not (weight > 0 and math.isfinite(weight)):
        raise InputError(f"the weight of {name} in {text!r} is no positive number: {FORM}")
    return WeightedSource(name, weight)


def _without_weight(text: str, piece: str) -> InputError:
    name = piece.split(",")[0].strip()
    return InputError(
        f"there is no file {text!r}, and as a mixture its source {name!r} has no weight: {FORM}"
    )


def _weight(piece: str) -> float | None:
    """The number behind the last colon, positive or not; None where there is none."""
    _, colon, number = piece.rpartition(":")
    try:
        return float(number) if colon else None
    except ValueError:
        return None


def _refuse_two_readings(text: str, pieces: Sequence[str]) -> None:
    """InputError where neighbouring pieces are, as one, the name of a file."""
    for start in range(len(pieces)):
        for end in range(start + 2, len(pieces) + 1):
            name = ",".join(pieces[start:end]).rpartition(":")[0]
            if kind_of(name):
                raise InputError(
                    f"{text!r} can be read in two ways, since there is a file {name!r}: rename "
                    "that file, so that no comma behind a number is in its name"
                )


def _refuse_repeated(sources: Sequence[WeightedSource]) -> None:
    seen: list[Corpus | Path] = []
    for source in sources:
        path = Path(source.name)
        meant = find_corpus(source.name) or (path.resolve() if kind_of(source.name) else path)
        if meant in seen:
            raise InputError(f"{source.name} is named twice: name it once, with the summed weight")
        seen.append(meant)
