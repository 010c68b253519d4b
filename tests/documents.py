"""JSON documents with one place changed, and what a plan says of a recovery."""

import copy
from collections.abc import Sequence
from typing import Any

ABSENT = object()
HEALING = {
    "text": {"source": "folder/heal.txt", "sequences": 64, "sequence_length": 32},
    **{"steps": 1200, "tokens": 4096, "loss_dense": 2.0, "loss_before": 2.5, "loss_after": 2.25},
    **{"divergence_before": 0.5, "divergence_after": 0.375},
}


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
