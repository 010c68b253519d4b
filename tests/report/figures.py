"""The parts of a figure that tests look at: its axes, and its labels, which must be legible."""

from __future__ import annotations

from itertools import combinations

import numpy
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from grasp_deploy.report.figure_style import Drawing, our_style


def axes_of(drawing: Drawing) -> Axes:
    (axes,) = drawing.figure.axes
    return axes


def heights_of(drawing: Drawing, index: int) -> list[float]:
    """The vertical values of a line."""
    values: list[float] = numpy.asarray(axes_of(drawing).get_lines()[index].get_ydata()).tolist()
    return values


def legend_of(drawing: Drawing) -> list[str]:
    return [text.get_text() for text in drawing.figure.legends[0].get_texts()]


def assert_legible(drawing: Drawing) -> None:
    """No label is cut, and none covers another."""
    labels = _labels_of(drawing)
    width, height = drawing.figure.bbox.width, drawing.figure.bbox.height
    for text, place in labels.items():
        inside = place.x0 >= 0 and place.x1 <= width and place.y0 >= 0 and place.y1 <= height
        assert inside, (drawing.name, text, place, width, height)
    for (one, first), (other, second) in combinations(labels.items(), 2):
        assert not first.padded(-1).overlaps(second.padded(-1)), (drawing.name, one, other)


def _labels_of(drawing: Drawing) -> dict[str, Bbox]:
    """Every visible text of a figure with the place that it takes, in pixels."""
    axes = axes_of(drawing)
    with our_style():
        canvas = FigureCanvasAgg(drawing.figure)
        canvas.draw()
        ticks = [*_drawn_ticks(axes.xaxis), *_drawn_ticks(axes.yaxis)]
        all_ticks = {*axes.get_xticklabels(), *axes.get_yticklabels()}
        texts = [text for text in drawing.figure.findobj(Text) if text not in all_ticks]
        return {
            f"{text.get_text()} ({number})": text.get_window_extent(canvas.get_renderer())
            for number, text in enumerate([*texts, *ticks])
            if text.get_visible() and text.get_text().strip()
        }


def _drawn_ticks(axis: Axis) -> list[Text]:
    """The labels of the ticks inside the axis's limits; others exist and are not drawn."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
