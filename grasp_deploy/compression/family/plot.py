"""Held-out loss against the size of the weights, with the knee marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from matplotlib.artist import Artist
from matplotlib.lines import Line2D

from grasp_deploy.compression.family.record import FamilyRecord
from grasp_deploy.compression.family.verdict import knee_of, points
from grasp_deploy.report.figure_style import (
    DASHED,
    MUTED,
    Drawing,
    color_of,
    finished,
    key_handle,
    line_handle,
    new_axes,
)

TITLE = "Loss against size"
KNEE_COLOR, KNEE_SIZE = "#d55e00", 13


def figures(record: FamilyRecord) -> Iterator[Drawing]:
    """One curve through the dense model and the members; nothing without held-out text."""
    curve = points(record)
    if not curve:
        return
    unit, name = (2**30, "GiB") if curve[0][0] >= 2**30 else (2**20, "MiB")
    tokens = record.settings.get("heldout_tokens", 0)
    axes = new_axes(TITLE, f"{tokens:,} held-out tokens; bars: one standard error")
    sizes, losses = [size / unit for size, _ in curve], [loss for _, loss in curve]
    errors = [0.0, *(member.excess_error or 0.0 for member in record.members)]
    color = color_of(1)
    axes.errorbar(sizes, losses, yerr=errors, color=color, marker="s", capsize=3, linewidth=1.8)
    axes.axhline(losses[0], color=MUTED, linestyle=DASHED, linewidth=1)
    labels = ["dense", *(f"{member.keep:g}" for member in record.members)]
    for label, place in zip(labels, zip(sizes, losses, strict=True), strict=True):
        axes.annotate(label, place, (6, 5), textcoords="offset points", fontsize=8.5)
    handles: list[Artist] = [line_handle(1, "members, by keep"), key_handle("dense", DASHED)]
    knee = knee_of(curve)
    if knee is not None:
        ring: dict[str, Any] = {
            "marker": "o",
            "markersize": KNEE_SIZE,
            "linestyle": "none",
            "fillstyle": "none",
        }
        axes.plot([sizes[knee]], [losses[knee]], color=KNEE_COLOR, markeredgewidth=1.6, **ring)
        handles.append(Line2D([], [], color=KNEE_COLOR, label="knee", **ring))
    axes.margins(x=0.12, y=0.12)
    axes.set_xlabel(f"weights, {name}")
    axes.set_ylabel("loss, nats per token")
    yield finished("loss-by-size", TITLE, axes, handles)
