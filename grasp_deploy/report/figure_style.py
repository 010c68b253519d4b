"""Figure style: sizes, colours that the colour-blind can tell apart, PNG and SVG output.

A figure is drawn once, in light colours on white. A dark page inverts it with a CSS filter.
"""

import io
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.files.sizes import BINARY_UNITS
from grasp_deploy.report.section import Drawing

LINE_CHARACTERS = 40  # of a title, a note or a name in the legend; longer ones are wrapped
MUTED = "#5e6673"
# Okabe and Ito's hues, each dark enough for white; the first, grey, is the first model's.
SERIES = ("#4a5260", "#0072b2", "#d55e00", "#009e73", "#a65a96", "#b07a00", "#3a9bdc")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Dashes = Literal["-"] | tuple[float, tuple[float, float]]
DASHED: Dashes = (0, (4, 2))
DOTTED: Dashes = (0, (1, 2))
SETTINGS: dict[str, Any] = {
    "figure.constrained_layout.use": True,
    "figure.figsize": (4.5, 3.1),
    "savefig.bbox": "tight",  # a long name widens the figure, and is never cut
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same figure everywhere
    "text.parse_math": False,  # a $ in a model's name is a $
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 8.5,
    "axes.titlecolor": MUTED,
    "lines.markersize": 5.5,
    "svg.fonttype": "path",  # no label depends on the reader's fonts
    "svg.hashsalt": "grasp-deploy",
}


def our_style() -> AbstractContextManager[None]:
    """Draw and save in this style, whatever the user's own matplotlib settings."""
    return mpl.style.context(["seaborn-v0_8-whitegrid", SETTINGS], after_reset=True)


def new_axes(title: str, note: str) -> Axes:
    """Axes in a new figure, with a title and a note beneath it."""
    figure = Figure()
    heading = textwrap.fill(title, LINE_CHARACTERS)
    figure.suptitle(heading, x=0.01, ha="left", fontsize=11, fontweight="bold")
    axes = figure.add_subplot()
    axes.set_title(textwrap.fill(note, LINE_CHARACTERS + 10))
    return axes


def finished(name: str, title: str, axes: Axes, handles: Sequence[Artist]) -> Drawing:
    """A drawing with its legend below the plot; the figure grows by the legend's lines."""
    labels = [textwrap.fill(str(h.get_label()), LINE_CHARACTERS) for h in handles]
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes are made with their figure"
    figure.set_figheight(figure.get_figheight() + 0.2 * sum(1 + x.count("\n") for x in labels))
    figure.legend(handles, labels, loc="outside lower left")
    return Drawing(name, title, figure)


def against_size(
    title: str, note: str, label: str, points: Sequence[tuple[str, Footprint, float, float | None]]
) -> tuple[Axes, list[tuple[float, float]], list[Artist]]:
    """Axes that plot a figure of each model against its weights; its points, and legend entries."""
    unit = "GiB" if points[0][1].weight_bytes >= BINARY_UNITS["GiB"] else "MiB"
    axes = new_axes(title, note)
    handles: list[Artist] = []
    curve: list[tuple[float, float]] = []
    for place, (name, footprint, figure, error) in enumerate(points):
        curve.append((footprint.weight_bytes / BINARY_UNITS[unit], figure))
        axes.errorbar(*curve[-1], yerr=error or 0.0, capsize=3, **look_of(place))
        handles.append(line_handle(place, name, linestyle=""))
    axes.margins(0.08)
    axes.set_xlabel(f"weights, {unit}")
    axes.set_ylabel(label)
    return axes, curve, handles


def look_of(index: int) -> dict[str, Any]:
    """Colour and marker of the model at an index; only the first one is grey."""
    color = SERIES[index if index < len(SERIES) else 1 + (index - 1) % (len(SERIES) - 1)]
    return {"color": color, "marker": MARKERS[index % len(MARKERS)]}


def line_handle(index: int, label: str, **look: Any) -> Line2D:
    return Line2D([], [], label=label, **look_of(index), **look)


def key_handle(label: str, dashes: Dashes = "-") -> Line2D:
    """A legend entry for a line that belongs to no model."""
    return Line2D([], [], color=MUTED, linestyle=dashes, linewidth=1.4, label=label)


def count_from_zero(axes: Axes) -> None:
    """Start the vertical axis at 0, leave room above the highest mark, and separate thousands."""
    axes.update_datalim([(0, 0)], updatex=False)
    axes.autoscale_view(scalex=False)  # by the range from 0: that of one point leaves no room
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.10g}")


def png(figure: Figure) -> bytes:
    """The figure as a PNG file on white ground."""
    return _saved(figure, format="png", dpi=200, metadata={"Software": "grasp-deploy"})


def svg(drawing: Drawing) -> bytes:
    """The figure as an SVG file without ground; the same figure gives the same bytes."""
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    return _saved(drawing.figure, format="svg", transparent=True, metadata=metadata)


def _saved(figure: Figure, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with our_style():
        figure.savefig(buffer, **options)
    return buffer.getvalue()
