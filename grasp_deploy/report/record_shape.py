"""What a part of a record must look like, and what is wrong with one that does not, in words.

A shape is `None` (anything), `str`, `int` or `float` (a number of 0 or more), `POSITIVE`,
`POSITIVE_INT` or `SIGNED`, a mapping of keys that must be there, a list (at least one item, each of
that shape), `AnyNumber` (a list that may be empty too), `ByName` or `OrNull`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grasp_deploy.files.record import is_number

POSITIVE, POSITIVE_INT = "a positive number", "a positive whole number"
SIGNED = "a number, below 0 too"


@dataclass(frozen=True)
class OrNull:
    """Null, or of a shape."""

    shape: Any


@dataclass(frozen=True)
class AnyNumber:
    """A list whose every item is of a shape, and that may be empty."""

    shape: Any


@dataclass(frozen=True)
class ByName:
    """An object of at least one entry, each of a shape, whatever they are called."""

    shape: Any


def wrong(value: Any, wanted: Any, where: str) -> str:
    """What is missing or of another shape, in words; empty if nothing is."""
    if wanted is None or (isinstance(wanted, OrNull) and value is None):
        return ""
    if isinstance(wanted, OrNull):
        return wrong(value, wanted.shape, where)
    if isinstance(wanted, dict):
        return _wrong_mapping(value, wanted, where)
    if isinstance(wanted, ByName):
        named = value if isinstance(value, dict) else {}
        return _wrong_mapping(value, dict.fromkeys(named, wanted.shape), where) or (
            "" if named else f"{where} is empty"
        )
    if isinstance(wanted, AnyNumber):
        return _wrong_list(value, wanted.shape, where, least=0)
    if isinstance(wanted, list):
        return _wrong_list(value, wanted[0], where, least=1)
    if wanted is str:
        return "" if isinstance(value, str) else f"{where} is no text"
    return _wrong_number(value, wanted, where)


def wrong_if_there(value: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> str:
    """As `wrong`, of keys that a mapping may do without."""
    return wrong(value, {key: shape for key, shape in wanted.items() if key in value}, where)


def _wrong_number(value: Any, wanted: Any, where: str) -> str:
    if not is_number(value) or (wanted in (int, POSITIVE_INT) and not isinstance(value, int)):
        return f"{where} is no number"
    too_small = (value < 0 and wanted != SIGNED) or (
        wanted in (POSITIVE, POSITIVE_INT) and value == 0
    )
    return f"{where} is {value:g}, which cannot be" if too_small else ""


def _wrong_list(value: Any, wanted: Any, where: str, least: int) -> str:
    if not isinstance(value, list):
        return f"{where} is no list" + (" of at least one" if least else "")
    if len(value) < least:
        return f"{where} is no list of at least one"
    found = (wrong(item, wanted, f"{where}[{index}]") for index, item in enumerate(value))
    return next(filter(None, found), "")


def _wrong_mapping(value: Any, wanted: Mapping[str, Any], where: str) -> str:
    if not isinstance(value, dict):
        return f"{where} is no object"
    missing = [key for key in wanted if key not in value]
    if missing:
        return f"{where} has no {missing[0]}"
    found = (
        wrong(value[key], inner, key if where == "it" else f"{where}.{key}")
        for key, inner in wanted.items()
    )
    return next(filter(None, found), "")
