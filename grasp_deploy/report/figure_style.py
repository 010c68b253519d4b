"""Figure style: sizes, colours that the colour-blind can tell apart, PNG and SVG output.

A figure is drawn once, in light colours on white. A dark page inverts it with a CSS filter.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FuncFormatter

WIDTH_INCHES, PLOT_HEIGHT_INCHES, LEGEND_LINE_INCHES = 4.5, 3.1, 0.2
TITLE_POINTS, NOTE_POINTS, LEGEND_POINTS = 308.0, 240.0, 262.0  # the widest line of each
TITLE_SIZE, NOTE_SIZE, LEGEND_SIZE = 11.0, 8.5, 9.5
FONT = "DejaVu Sans"  # comes with matplotlib: the same figure everywhere
SURFACE, INK, MUTED, GRID = "#ffffff", "#1f2430", "#5e6673", "#d9dde3"
# Okabe and Ito's hues, each dark enough for white; the first, grey, is the first model's.
SERIES = ("#4a5260", "#0072b2", "#d55e00", "#009e73", "#a65a96", "#b07a00", "#3a9bdc")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Dashes = Literal["-"] | tuple[float, tuple[float, float]]
DASHED: Dashes = (0, (4, 2))
DOTTED: Dashes = (0, (1, 2))
SETTINGS: dict[Any, Any] = {
    "font.family": FONT,
    "font.size": 10,
    "text.parse_math": False,  # a $ in a model's name is a $
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": NOTE_SIZE,
    "axes.titlecolor": MUTED,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "figure.facecolor": SURFACE,
    "axes.facecolor": SURFACE,
    "savefig.facecolor": SURFACE,
    "legend.frameon": False,
    "legend.fontsize": LEGEND_SIZE,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "svg.fonttype": "path",  # no label depends on the reader's fonts
    "svg.hashsalt": "grasp-deploy",
}


@dataclass(frozen=True)
class Drawing:
    """A figure, the name of its file, and what it shows in words."""

    name: str
    title: str
    figure: Figure


@contextmanager
def our_style() -> Iterator[None]:
    """Draw and save in this style, whatever the user's own matplotlib settings."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        yield


def new_axes(title: str, note: str, height_inches: float = PLOT_HEIGHT_INCHES) -> Axes:
    """Axes in a new figure, with a title and a note beneath it."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout=layout)
    axes = figure.add_subplot()
    heading = fitted(title, TITLE_SIZE, TITLE_POINTS, weight="bold")
    figure.suptitle(heading, x=0.01, ha="left", fontsize=TITLE_SIZE, fontweight="bold")
    axes.set_title(fitted(note, NOTE_SIZE, NOTE_POINTS))
    return axes


def finished(name: str, title: str, axes: Axes, handles: Sequence[Artist]) -> Drawing:
    """A drawing with its legend below the plot; the figure grows by the legend's lines."""
    labels = [fitted(str(h.get_label()), LEGEND_SIZE, LEGEND_POINTS) for h in handles]
    widest = max(text_points(line, LEGEND_SIZE) for label in labels for line in label.splitlines())
    columns = 2 if widest < LEGEND_POINTS / 2 - 25 and len(labels) > 1 else 1
    lines = sum(label.count("\n") + 1 for label in labels) / columns
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes are made with their figure"
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE_INCHES * (lines + 0.5))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns)
    return Drawing(name, title, figure)


def fitted(text: str, size: float, points: float, weight: str = "normal") -> str:
    """Text in lines of at most `points`; a word longer than a line is broken."""
    for characters in range(80, 4, -2):
        lines = textwrap.wrap(text, characters, break_on_hyphens=False)
        if all(text_points(line, size, weight) <= points for line in lines):
            break
    return "\n".join(lines)


def text_points(text: str, size: float, weight: str = "normal") -> float:
    """Width of a line of text in points."""
    font = FontProperties(family=FONT, size=size, weight=weight)
    width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return float(width)


def color_of(index: int) -> str:
    """Colour of the model at an index; the first model, which others are compared with, is grey."""
    return SERIES[index if index < len(SERIES) else 1 + (index - 1) % (len(SERIES) - 1)]


def marker_of(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def line_handle(index: int, label: str) -> Line2D:
    return Line2D([], [], color=color_of(index), marker=marker_of(index), label=label)


def key_handle(label: str, dashes: Dashes = "-", color: str = MUTED) -> Line2D:
    """A legend entry for a line that belongs to no model."""
    return Line2D([], [], color=color, linestyle=dashes, linewidth=1.4, label=label)


def patch_handle(index: int, label: str) -> Patch:
    return Patch(color=color_of(index), label=label)


def count_from_zero(axes: Axes) -> None:
    """Start the vertical axis at 0, leave room above the highest mark, and separate thousands."""
    axes.update_datalim([(0, 0)], updatex=False)
    axes.autoscale_view(scalex=False)  # by the range from 0: that of one point leaves no room
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def png(drawing: Drawing) -> bytes:
    """The figure as a PNG file on white ground."""
    return _saved(drawing, format="png", dpi=200, metadata={"Software": "grasp-deploy"})


def svg(drawing: Drawing) -> bytes:
    """The figure as an SVG file without ground; the same figure gives the same bytes."""
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    return _saved(drawing, format="svg", transparent=True, metadata=metadata)


def _saved(drawing: Drawing, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with our_style():
        drawing.figure.savefig(buffer, **options)
    return buffer.getvalue()
