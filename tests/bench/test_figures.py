"""Figures of benches: what they draw is what the records say, and no label is cut."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")

from grasp_deploy.bench.kinds import section_of
from grasp_deploy.report.figure_style import Drawing, our_style
from grasp_deploy.report.section import NamedRecord
from tests.bench.records import (
    Record,
    kv_record,
    memory_record,
    model,
    serve_record,
    throughput_record,
)
from tests.report.figures import assert_legible, axes_of, legend_of

NAMES = {
    "short": ("dense", "pruned"),
    "long": ("a-7b-model-with-a-long-name-and-a-date-2026-01-02", "M" * 70),
}


def models(names: Sequence[str] = NAMES["short"]) -> list[dict[str, Any]]:
    return [model(names[0]), model(names[1], 0.6)]


def all_records(some: list[dict[str, Any]]) -> list[Record]:
    return [
        throughput_record(some),
        memory_record(some),
        kv_record(some),
        serve_record(some, gains={some[1]["name"]: 1.3}),
    ]


def drawings(one: Record) -> list[Drawing]:
    with our_style():
        return section_of(NamedRecord("record", one, Path("record.json"))).figures()


def named(records: list[Record]) -> dict[str, Drawing]:
    return {drawing.name: drawing for one in records for drawing in drawings(one)}


def test_the_figures_of_each_record() -> None:
    speeds = {"throughput", "prefill", "decode"}
    assert named(all_records(models())).keys() == {
        *speeds,
        *(f"{name}-ratio" for name in speeds),
        *("memory", "kv-capacity"),
        *("serve-throughput", "serve-ttft", "serve-tpot", "serve-itl", "serve-e2e"),
    }


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_every_label_can_be_read(names: tuple[str, str]) -> None:
    for name, drawing in named(all_records(models(names))).items():
        assert_legible(drawing)
        axes = axes_of(drawing)
        assert axes.get_xlabel() and (axes.get_ylabel() or name == "kv-capacity"), name
        legend = "".join(legend_of(drawing)).replace("\n", "").replace(" ", "")
        assert all(one.replace(" ", "") in legend for one in names), (name, legend)


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


def test_loads_by_rate() -> None:
    one = serve_record(models())
    for cell in one["cells"]:
        rate = cell["load"]["max_concurrency"] / 16
        cell["load"] = {"max_concurrency": None, "request_rate": rate}
    for drawing in drawings(one):
        axes = axes_of(drawing)
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0.5", "2", "8"]
        assert axes.get_xlabel() == "requests per second"
