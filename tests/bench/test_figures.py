"""Figures of benches: what they draw is what the records say, and no label is cut."""

from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")

from grasp_deploy.bench.kinds import section_of
from grasp_deploy.report.figure_style import our_style
from grasp_deploy.report.figures import figure_groups
from grasp_deploy.report.section import Drawing
from tests.bench import records
from tests.report.figures import assert_legible, axes_of, heights_of, legend_of

LONG = ("a-7b-model-with-a-long-name-and-a-date-2026-01-02", "M" * 70)
MODELS = [records.model("dense"), records.model("pruned", 0.6)]


def drawn(one: dict[str, Any]) -> dict[str, Drawing]:
    with our_style():
        drawings = section_of("record", one).figures()
    return {drawing.name: drawing for drawing in drawings}


@pytest.mark.parametrize("names", [("_hidden", "$a_{b}$ <b>&amp; [red]"), LONG])
def test_every_label_of_each_figure_can_be_read(names: tuple[str, str]) -> None:
    models = [records.model(names[0]), records.model(names[1], 0.6)]
    speeds = {"throughput", "throughput-ratio", "ttft", "tpot"}
    serving = {f"serve-{name}" for name in ("throughput", "ttft", "tpot", "e2e")}
    for make, expected in (
        (records.throughput_record, speeds),
        (records.memory_record, {"memory"}),
        (records.kv_record, {"kv-capacity"}),
        (records.serve_record, serving),
    ):
        found = drawn(make(models))
        assert found.keys() == expected
        for name, drawing in found.items():
            assert_legible(drawing)
            axes = axes_of(drawing)
            assert axes.get_xlabel() and (axes.get_ylabel() or name == "kv-capacity"), name
            told = "".join([drawing.title, *legend_of(drawing)]).replace("\n", "").replace(" ", "")
            assert all(one.replace(" ", "") in told for one in names), (name, told)


def test_throughput_is_the_median_of_the_samples_and_a_lack_leaves_a_gap() -> None:
    one = records.throughput_record(MODELS, gains={"pruned": 1.2}, batches=(1, 4, 16))
    one["cells"][4]["samples"] = []  # the dense model's batch of 16 did not fit
    found = drawn(one)
    for line, offset in zip(axes_of(found["throughput"]).get_lines(), (0, 1), strict=True):
        cells = [cell for cell in one["cells"][offset::2] if cell["samples"]]
        medians = [sorted(s["seconds"] for s in cell["samples"])[1] for cell in cells]
        batches = [cell["batch"] for cell in cells]
        rates = [256 * batch / seconds for batch, seconds in zip(batches, medians, strict=True)]
        assert list(line.get_ydata()) == pytest.approx(rates)
    ratio = axes_of(found["throughput-ratio"])
    assert [label.get_text() for label in ratio.get_xticklabels()] == ["1", "4"]
    (ideal,) = [line for line in ratio.get_lines() if line.is_dashed()]
    assert all(1.3 < y < 1.9 for y in ideal.get_ydata())


def test_memory_lines_go_through_the_measured_and_the_predicted_peak() -> None:
    one = records.memory_record(MODELS)
    lines = iter(axes_of(drawn(one)["memory"]).get_lines())
    for cells in (one["cells"][:4], one["cells"][4:]):
        for source in ("measured", "predicted"):
            peaks = [cell[source]["peak_bytes"] / 2**20 for cell in cells]
            assert list(next(lines).get_ydata()) == pytest.approx(peaks)


@pytest.mark.parametrize("measured", [True, False])
def test_kv_bars_are_the_sequences(measured: bool) -> None:
    one = records.kv_record(MODELS, measured)
    widths = [bar.get_width() for bar in axes_of(drawn(one)["kv-capacity"]).patches]
    source = "measured" if measured else "predicted"
    assert widths == [cell[source]["sequences"] for cell in one["cells"]]


def test_kept_shares_layer_by_layer_where_a_layer_can_be_compared() -> None:
    dense, pruned = (records.model(name, num_hidden_layers=2) for name in ("dense", "pruned"))
    pruned["footprint"]["layers"][0]["intermediate_size"] //= 2
    section = section_of("kv", records.kv_record([dense, pruned]))
    _, (heading, _, (channels, _)) = figure_groups([section])
    assert heading == "What each layer keeps" and heights_of(channels, 0) == [0.5, 1.0]
    assert legend_of(channels)[0] == "pruned: 75.0%"
    others = [records.model("other", num_hidden_layers=n) for n in (2, 1)]  # the same, not as deep
    experts = records.model("experts", num_hidden_layers=2)
    for layer in experts["footprint"]["layers"]:
        layer["num_experts"] = 8
    for pair in (*([dense, other] for other in others), [dense, experts], [experts, dense]):
        section = section_of("kv", records.kv_record(pair))
        assert len(list(figure_groups([section]))) == 1
    for model in (dense, pruned):  # a layer with linear attention has no heads to keep
        model["footprint"]["layers"][0] |= {"num_attention_heads": 0, "num_key_value_heads": 0}
    section = section_of("kv", records.kv_record([dense, pruned]))
    _, (_, _, (_, heads)) = figure_groups([section])
    (line, *_) = axes_of(heads).get_lines()
    assert (list(line.get_xdata()), heights_of(heads, 0)) == ([1], [1.0])


def test_models_and_records_of_one_mask_share_a_line_and_a_figure() -> None:
    other = records.model("other", 0.5)
    pruned = [records.model(name, 0.6) for name in ("small", "healed", "small-w4")]
    sections = [
        section_of("loss", records.kv_record([records.model("dense"), *pruned])),
        section_of("kv", records.kv_record(MODELS)),
        section_of("memory", records.memory_record([*MODELS, other])),
    ]
    kept = [group for group in figure_groups(sections) if group[0] == "What each layer keeps"]
    assert [section.name for _, section, _ in kept] == ["loss", "memory"]
    for place, names in enumerate((["small, healed and small-w4"], ["pruned", "other"])):
        legend = legend_of(kept[place][2][0])[:-1]
        assert [" ".join(one.split()).rpartition(": ")[0] for one in legend] == names
