"""The parts of a figure that tests look at: its axes, and its labels, which must be legible."""

from itertools import combinations

import numpy
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from grasp_deploy.report.figure_style import our_style
from grasp_deploy.report.section import Drawing


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
    """No label covers another, and no plot is squeezed; a saved figure is as large as they need."""
    axes = axes_of(drawing)
    with our_style():
        canvas = FigureCanvasAgg(drawing.figure)
        canvas.draw()
        shown = [text for text in drawing.figure.findobj(Text) if text.get_text().strip()]
        hidden = {  # ticks outside of the limits exist and are not drawn
            tick.label1
            for axis in (axes.xaxis, axes.yaxis)
            for tick in axis.get_major_ticks()
            if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        }
        places = [
            (text.get_text(), text.get_window_extent(canvas.get_renderer()))
            for text in shown
            if text.get_visible() and text not in hidden
        ]
    assert axes.bbox.height > 100 and axes.bbox.width > 200, drawing.name
    for (one, first), (other, second) in combinations(places, 2):
        assert not first.padded(-1).overlaps(second.padded(-1)), (drawing.name, one, other)
