"""What a table says, its rows and its figures, on times that lie on a line."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from grasp_deploy.bench.kinds import section_of
from grasp_deploy.bench.latency.table import price_table, shape_table
from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.report.section import NamedRecord
from tests.bench import records
from tests.latency_tables import DECODE, FFN, KV, table_record
from tests.tiny import tiny_config

SHAPE = model_shape(tiny_config("llama", num_key_value_heads=4).to_dict())
RECORD = table_record(SHAPE)


def test_the_fixed_share_and_the_largest_speedup() -> None:
    section = section_of(NamedRecord("table", RECORD))
    row = section.verdicts[0]
    assert (row["phase"], row["dense_seconds"]) == ("decode", DECODE)
    assert row["fixed_share"] == pytest.approx(1 - FFN - KV)
    least = 1 - FFN - KV + FFN * 8 / 96 + KV / 4  # a tile of 8 channels, and a group
    assert row["largest_speedup"] == pytest.approx(1 / least)
    assert row["largest_error"] == pytest.approx(0, abs=1e-9)
    assert section.headlines[0]["sentence"] == (
        "decode: 40% of the time is fixed, so that no pruning makes it more than "
        f"{1 / least:.2f}x as fast; the price of a unit misses measured shapes by at most 0%."
    )


def test_noise_that_leaves_no_price_is_said() -> None:
    record = table_record(SHAPE)
    for cell in record["cells"]:  # half the shape takes less than half the time
        cell["samples"] = [{**s, "tpot_seconds": DECODE / 10} for s in cell["samples"]]
    section = section_of(NamedRecord("table", record))
    row = section.verdicts[0]
    assert (row["outcome"], row["largest_speedup"]) == ("no price", None)
    assert "decode: too noisy for a price at 1 of 1 points" in section.headlines[0]["sentence"]
    assert section.headlines[1]["outcome"] == "priced"
    assert all(table.row_count for table in section.tables())


def test_the_tables_show_shares_and_what_a_layer_saves() -> None:
    record = records.typed(RECORD)
    row = records.row_of(records.lines_of(shape_table(record, "decode"), 80), "24 x 4")
    share = 1 - FFN * 0.75
    saved = f"{1e6 * DECODE * FFN * 0.75 / 3:,.1f}"
    assert f"{share:.1%} ±0.0%" in row and saved in row
    row = records.row_of(records.lines_of(price_table(record), 80), "batch 8, context 64")
    assert "40.0%" in row and "20.0%" in row


def test_the_staircase_ends_at_the_dense_model() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")
    from grasp_deploy.report.figure_style import our_style
    from tests.report.figures import assert_legible, axes_of

    with our_style():
        drawings = section_of(NamedRecord("table", RECORD, Path("table.json"))).figures()
    names = [f"latency-{phase}-{kind}" for phase in ("decode", "prefill") for kind in ("ffn", "kv")]
    assert [drawing.name for drawing in drawings] == names
    for drawing in drawings:
        assert_legible(drawing)
    points, *_, line = axes_of(drawings[0]).get_lines()
    shares = [1 - FFN * 0.75, 1 - FFN * 0.5, 1 - FFN * 0.25, 1]
    assert points.get_xydata() == pytest.approx(numpy.array([[24, 48, 72, 96], shares]).T)
    assert line.get_xydata() == pytest.approx(numpy.array([[0, 1 - FFN], [96, 1]]))
