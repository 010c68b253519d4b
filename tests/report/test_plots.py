"""Figures: what they draw is what the records say, and no label is cut or hidden by another."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import chain, combinations, pairwise
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")

import matplotlib as mpl
from grasp_deploy.report.plots import Drawing, drawings, png, shape_drawings, svg
from grasp_deploy.report.plots.shapes import pareto_front
from matplotlib import image
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from grasp_deploy.report.figure_style import DARK, INK, SERIES, color_of, our_style
from tests.report.records import (
    Record,
    kv_record,
    memory_record,
    model,
    quality_record,
    record,
    serve_record,
    throughput_record,
)

NAMES = {
    "short": ("dense", "pruned"),
    "long": ("a-7b-model-with-a-long-name-and-a-date-2026-01-02", "M" * 70),
    "odd": ("_hidden", "$a_{b}$ <b>&amp; [red]"),
}


def models(names: Sequence[str] = NAMES["short"]) -> list[dict[str, Any]]:
    return [model(names[0]), model(names[1], 0.6)]


def all_records(some: list[dict[str, Any]]) -> list[Record]:
    return [
        throughput_record(some),
        memory_record(some),
        kv_record(some),
        serve_record(some, gains={some[1]["name"]: 1.3}),
        quality_record(some, ["wikitext2"]),
    ]


def all_drawings(records: list[Record]) -> list[Drawing]:
    shapes = chain.from_iterable(shape_drawings(records))
    return [*(d for one in records for d in drawings(one)), *shapes]


def named(records: list[Record]) -> dict[str, Drawing]:
    return {drawing.name: drawing for drawing in all_drawings(records)}


def axes_of(drawing: Drawing) -> Axes:
    (axes,) = drawing.figure.axes
    return axes


def labels_of(drawing: Drawing) -> dict[str, Bbox]:
    """Every visible text of a figure with the place that it takes, in pixels."""
    axes = axes_of(drawing)
    with our_style():
        canvas = FigureCanvasAgg(drawing.figure)
        canvas.draw()
        ticks = [*drawn_ticks(axes.xaxis), *drawn_ticks(axes.yaxis)]
        all_ticks = {*axes.get_xticklabels(), *axes.get_yticklabels()}
        texts = [text for text in drawing.figure.findobj(Text) if text not in all_ticks]
        return {
            f"{text.get_text()} ({number})": text.get_window_extent(canvas.get_renderer())
            for number, text in enumerate([*texts, *ticks])
            if text.get_visible() and text.get_text().strip()
        }


def drawn_ticks(axis: Axis) -> list[Text]:
    """The labels of the ticks inside the axis's limits; others exist and are not drawn."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


def test_the_figures_of_each_record() -> None:
    found = named(all_records(models()))
    speeds = {"throughput", "prefill", "decode"}
    assert found.keys() == {
        *speeds,
        *(f"{name}-ratio" for name in speeds),
        *("memory", "kv-capacity", "kept-ffn", "kept-kv", "pareto-wikitext2"),
        *("serve-throughput", "serve-ttft", "serve-tpot", "serve-itl", "serve-e2e"),
    }
    assert drawings(record("gate_step", [])) == []


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_no_label_is_cut_or_covers_another(names: tuple[str, str]) -> None:
    for drawing in all_drawings(all_records(models(names))):
        labels = labels_of(drawing)
        width, height = drawing.figure.bbox.width, drawing.figure.bbox.height
        for text, place in labels.items():
            inside = place.x0 >= 0 and place.x1 <= width and place.y0 >= 0 and place.y1 <= height
            assert inside, (drawing.name, text, place, width, height)
        for (one, first), (other, second) in combinations(labels.items(), 2):
            assert not first.padded(-1).overlaps(second.padded(-1)), (drawing.name, one, other)


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_the_legend_names_every_model_as_it_is(names: tuple[str, str]) -> None:
    for drawing in all_drawings(all_records(models(names))):
        legend = "".join(t.get_text() for t in drawing.figure.legends[0].get_texts())
        expected = names[1:] if drawing.name.startswith("kept") else names
        for name in expected:
            written = legend.replace("\n", "").replace(" ", "")
            assert name.replace(" ", "") in written, (drawing.name, legend)


def test_axes_say_their_units() -> None:
    for name, drawing in named(all_records(models())).items():
        axes = axes_of(drawing)
        assert axes.get_xlabel(), name
        assert axes.get_ylabel() or name == "kv-capacity", name
        assert drawing.title, name


def test_throughput_is_the_median_of_the_samples() -> None:
    one = throughput_record(models(), batches=(1, 4), repetitions=3)
    drawn = named([one])["throughput"]
    line = axes_of(drawn).get_lines()[0]
    for x, y in zip(*line.get_data(), strict=True):
        cell = next(c for c in one["cells"] if c["model"] == "dense" and c["batch"] == x)
        seconds = sorted(sample["seconds"] for sample in cell["samples"])[1]
        assert y == pytest.approx(x * 256 / seconds)


def test_a_batch_that_did_not_fit_leaves_a_gap() -> None:
    one = throughput_record(models(), batches=(1, 4, 16))
    for cell in one["cells"]:
        if (cell["model"], cell["batch"]) == ("dense", 16):
            cell["samples"] = []
    found = named([one])
    dense, pruned = (
        list(line.get_xdata()) for line in axes_of(found["throughput"]).get_lines()[::3][:2]
    )
    assert (dense, pruned) == ([1, 4], [1, 4, 16])
    assert [label.get_text() for label in axes_of(found["decode-ratio"]).get_xticklabels()] == [
        "1",
        "4",
    ]


def test_ratios_have_their_ideal_as_a_dashed_line() -> None:
    found = named([throughput_record(models(), gains={"pruned": 1.2}, batches=(1, 4))])
    dashed = [line for line in axes_of(found["decode-ratio"]).get_lines() if line.is_dashed()]
    (ideal,) = dashed
    assert all(1.3 < y < 1.9 for y in ideal.get_ydata())


def test_memory_bars_end_at_the_measured_peak() -> None:
    one = memory_record(models())
    bars = axes_of(named([one])["memory"]).patches
    tops = sorted(bar.get_y() + bar.get_height() for bar in bars)
    assert tops[-1] == pytest.approx(one["cells"][3]["measured"]["peak_bytes"] / 2**20)
    assert len(bars) == 3 * len(one["cells"])


def test_kv_bars_are_the_sequences() -> None:
    one = kv_record(models())
    axes = axes_of(named([one])["kv-capacity"])
    drawn = sorted(bar.get_width() for bar in axes.patches)
    assert drawn == sorted(cell["measured"]["sequences"] for cell in one["cells"])
    assert named([kv_record(models(), measured=False)])


def test_kept_shares_layer_by_layer_and_in_all() -> None:
    some = models()
    drawn = named([memory_record(some)])["kept-ffn"]
    kept = [layer["intermediate_size"] for layer in some[1]["footprint"]["layers"]]
    line = axes_of(drawn).get_lines()[0]
    assert list(line.get_ydata()) == pytest.approx([channels / 11008 for channels in kept])
    legend = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert f"pruned: {sum(kept) / 32 / 11008:.1%}" in legend


def test_nothing_is_kept_where_nothing_is_pruned() -> None:
    assert shape_drawings([memory_record([model("one"), model("two")])]) == [[]]
    shallow = model("shallow", 0.6, num_hidden_layers=8)
    assert shape_drawings([memory_record([model("one"), shallow])]) == [[]]


def test_kept_shares_are_drawn_once_for_the_same_models() -> None:
    some, others = models(), models(("dense", "other"))
    found = shape_drawings([memory_record(some), kv_record(some), kv_record(others)])
    both = ["kept-ffn", "kept-kv"]
    assert [[d.name for d in of_record] for of_record in found] == [both, [], both]


def test_the_pareto_front() -> None:
    assert pareto_front([(3, 1), (1, 3), (2, 4), (2.5, 2)]) == [(1, 3), (2.5, 2), (3, 1)]


def test_loads_of_every_kind() -> None:
    one = serve_record(models())
    for cell in one["cells"]:
        if cell["load"]["max_concurrency"] == 128:
            cell["load"] = {"max_concurrency": None, "request_rate": 2.5}
    for drawing in drawings(one):
        ticks = [label.get_text() for label in axes_of(drawing).get_xticklabels()]
        assert ticks == ["8", "32", "2.5/s"]


def test_colours_differ_and_go_round() -> None:
    assert len({*DARK, *DARK.values()}) == 2 * len(DARK)  # each is replaced by one other
    drawn = [color_of(index) for index in range(20)]
    assert drawn.count(SERIES[0]) == 1  # the first model's alone
    assert all(a != b for a, b in pairwise(drawn))


def test_png_is_a_picture_that_is_not_empty() -> None:
    for drawing in all_drawings(all_records(models())):
        pixels = image.imread(io.BytesIO(png(drawing)))
        assert pixels.shape[1] == 900 and pixels.std() > 0.05, drawing.name


def test_svg_is_for_a_page() -> None:
    records = all_records(models())
    again = named(records)
    for name, drawing in named(records).items():
        text = svg(drawing, "f7")
        assert text == svg(again[name], "f7"), name  # the same record gives the same page
        assert text.startswith("<svg viewBox=") and 'aria-label="' in text
        assert not re.search(r"https?:|<style|<script", text), name
        assert not re.search(r"#[0-9a-f]{6}\b", text), name  # every colour is a variable
        ids = re.findall(r'\bid="([^"]+)"', text)
        assert all(i.startswith("f7-") for i in ids)
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= set(ids)


def test_the_users_own_settings_neither_change_nor_matter() -> None:
    one = memory_record(models())
    expected = png(drawings(one)[0])
    with mpl.rc_context({"axes.grid": False, "text.color": "red", "figure.dpi": 33}):
        before = dict(mpl.rcParams)
        assert png(drawings(one)[0]) == expected
        assert dict(mpl.rcParams) == before
    assert INK == "#1f2430"
