"""Losses side by side: the frontier, and figures against size."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest

from grasp_deploy.bench.kinds import section_of
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.compare import LossCell
from grasp_deploy.evaluate.table import frontier_of, headlines
from tests.bench import records
from tests.bench.records import model, typed
from tests.evaluate.tasks.task_records import task_record

KEEPS = (0.8, 0.6, 0.4)
CELL = LossCell.__struct_fields__
BENT = (2.0, 2.02, 2.1, 3.0)


def record(losses: Sequence[float]) -> dict[str, Any]:
    """Models of LLaMA-2-7B's size with these losses on a text, the dense model's first."""
    models = [model("dense"), *(model(f"keep-{keep}", keep) for keep in KEEPS)]
    cells = [
        {
            **dict.fromkeys(CELL),
            "calibrated_on": False,
            "model": named["name"],
            "perplexity": math.exp(loss),
            "loss_nats_per_token": loss,
            "tokens": 16_384,
            "data": {"source": "text", "sequences": 64},
            "excess_nats": loss - losses[0],
            "excess_error": 0.01 if place else 0.0,
        }
        for place, (named, loss) in enumerate(zip(models, losses, strict=True))
    ]
    return records.record("compare", models, cells=cells)


def test_the_frontier_has_what_no_other_beats() -> None:
    assert frontier_of([(10, 2.0), (8, 2.1), (9, 2.2), (4, 4.0), (4, 3.9)]) == [0, 1, 4]
    assert frontier_of([(10, 2.0), (8, 1.9)]) == [1], "the dense model is beaten"
    assert frontier_of([(10, 2.0), (10, 2.0)]) == [0], "twins count once"


def test_sentences_tell_what_each_model_lost() -> None:
    lines = headlines(typed(record(BENT)))
    assert [line["model"] for line in lines] == [f"keep-{keep}" for keep in KEEPS]
    assert [line["outcome"] for line in lines] == ["usable as a drop-in", "needs healing", "broken"]
    told = "which it is not known to have learnt from, it loses 0.100 ± 0.010 nats"
    assert told in lines[1]["sentence"], "no plan, no share"
    flattered = record(BENT)
    flattered["cells"][0]["calibrated_on"] = True
    assert {line["outcome"] for line in headlines(typed(flattered))} == {"undecided"}
    unknown = record(BENT)
    unknown["cells"][1]["data"]["sequences"] = None
    assert headlines(typed(unknown))[0]["outcome"] == "undecided", "no noise can be told"
    damaged = record(BENT)
    damaged["cells"][1]["excess_error"] = -1
    with pytest.raises(InputError, match=r"cells\[1\].excess_error.*>= 0"):
        typed(damaged)


def test_the_figure_has_a_point_for_each_budget() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")
    from grasp_deploy.report.figure_style import our_style
    from tests.report.figures import assert_legible, axes_of, heights_of, legend_of

    with our_style():
        (drawing,) = section_of("loss", record(BENT)).figures()
        beaten = section_of("loss", record(BENT[::-1]))
    assert "frontier" not in legend_of(beaten.figures()[0])[-1], "one model is no line"
    assert_legible(drawing)
    assert "difference from dense" in axes_of(drawing).get_title(loc="left").replace("\n", " ")
    assert [heights_of(drawing, place)[0] for place in (0, 3, 6, 9)] == pytest.approx(BENT)
    assert axes_of(drawing).get_xlabel() == "weights, GiB"
    assert legend_of(drawing)[0] == "dense" and "frontier" in legend_of(drawing)[-1]


def test_drift_and_accuracy_are_drawn_against_size_too() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")
    from grasp_deploy.report.figure_style import our_style
    from tests.report.figures import assert_legible, axes_of, heights_of, legend_of

    compared, tasks = record(BENT), task_record()
    for place, cell in enumerate(compared["cells"]):
        cell["divergence"] = place / 10
    with our_style():
        _, drift = section_of("loss", compared).figures()
        (accuracy,) = section_of("tasks", tasks).figures()
    assert [heights_of(drift, place)[0] for place in (0, 3, 6, 9)] == [0, 0.1, 0.2, 0.3]
    means = [
        100 * fmean(cell["accuracy"] for cell in tasks["cells"] if cell["model"] == name)
        for name in legend_of(accuracy)
    ]
    assert heights_of(accuracy, 0) == pytest.approx([means[0]])
    assert all(mark.get_linestyle() == "None" for mark in accuracy.figure.legends[0].get_lines())
    for cell in tasks["cells"]:
        cell["accuracy"] = 1.0
    tasks["cells"] = tasks["cells"][::2]
    with our_style():
        (full,) = section_of("tasks", tasks).figures()
    assert max(axes_of(full).get_yticks()) == 100, "no accuracy is above"
    assert axes_of(full).get_title(loc="left").startswith("piqa; "), "one task is no mean"
    assert_legible(drift)
    assert_legible(accuracy)
