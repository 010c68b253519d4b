"""Models as points of size or speed and loss: the frontier of the best ones, and its knee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from grasp_deploy.checkpoint.footprint import Footprint

LEAST_BEND = 0.05  # of the curve's height, below which a bend is none
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class LossPoint:
    """A model with its loss in nats per token."""

    name: str
    footprint: Footprint
    loss: float
    error: float | None  # standard error of what it lost against the first model


class LossRecord(Protocol):
    """A record of the losses of several models on one text."""

    @property
    def benchmark(self) -> str:
        """The kind of record."""

    @property
    def points(self) -> list[LossPoint]:
        """The models, the one that others are compared with first; none without a loss."""

    @property
    def text(self) -> str:
        """The text in a few words."""


def frontier_of(curve: Curve) -> list[int]:
    """The places of the points that no other beats in both size and loss, the largest first.

    A point is a size, of which less is better, and a loss.
    """
    best: list[int] = []
    for place in sorted(range(len(curve)), key=lambda place: curve[place]):
        if not best or curve[place][1] < curve[best[-1]][1]:
            best.append(place)
    return best[::-1]


def knee_of(curve: Curve) -> int | None:
    """The place of the point that lies farthest below the line from the first to the last.

    Both axes count from 0 to 1 between those two (Satopää et al. 2011). None for a line, or for a
    curve that bends the other way.
    """
    if len(curve) < 3:
        return None
    (first_x, first_y), (last_x, last_y) = curve[0], curve[-1]
    if first_x == last_x or last_y <= first_y:
        return None
    bends = [
        (first_x - x) / (first_x - last_x) - (y - first_y) / (last_y - first_y) for x, y in curve
    ]
    place = max(range(len(curve)), key=bends.__getitem__)
    return place if bends[place] >= LEAST_BEND else None


def frontier_and_knee(curve: Curve) -> tuple[list[int], int | None]:
    """The places of the frontier, and of the knee among them if there is one."""
    frontier = frontier_of(curve)
    knee = knee_of([curve[place] for place in frontier])
    return frontier, None if knee is None else frontier[knee]


def by_size(points: Sequence[LossPoint]) -> list[tuple[float, float]]:
    """Weight bytes and loss of each point."""
    return [(float(point.footprint.weight_bytes), point.loss) for point in points]
