"""JSON documents with one place changed."""

import copy
from collections.abc import Sequence
from typing import Any

ABSENT = object()


def changed(document: dict[str, Any], place: Sequence[str | int], value: Any) -> dict[str, Any]:
    """A copy with another value in one place, or (ABSENT) without what was there."""
    made = copy.deepcopy(document)
    inner: Any = made
    for step in place[:-1]:
        inner = inner[step]
    if value is ABSENT:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return made
