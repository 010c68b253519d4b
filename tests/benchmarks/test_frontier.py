"""`benchmarks.frontier`: loss and accuracy against memory, from records."""

import json
from pathlib import Path

import pytest

from benchmarks import frontier
from benchmarks.common.output import FOLDER
from grasp_deploy.errors import InputError

RESULTS = FOLDER / "results"


@pytest.mark.slow
def test_frontier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names tell which models are one in several schemes; sizes and losses are the record's."""
    record, picture = RESULTS / "quantised-smollm2-135m-cpu.json", tmp_path / "frontier.png"
    frontier.main([str(record), "--tokens", "1024", "--png", str(picture)])
    rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in rows][-1] == [
        *("s0.8", "w4a16", "97", "119", "+0.740 ± 0.018", "")
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")
    frontier.main([str(record), "--png", str(picture)])
    picture.write_bytes(b"a photo")
    with pytest.raises(InputError, match="exists and was not written by"):
        frontier.main([str(record), "--png", str(picture)])
    other = RESULTS / "frontier-tasks-smollm2-135m-cpu.json"
    with pytest.raises(InputError, match="is no record of `evaluate compare`"):
        frontier.main([str(other)])


def test_methods_at_several_budgets_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    frontier.main([str(RESULTS / "budgets-smollm2-135m-cpu.json")])
    rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [[cell.strip() for cell in row[:4]] for row in rows] == [
        ["smollm2-135m", "plain", "257", "617"],
        *(["ours", "0.8", "216", "556"], ["ours", "0.7", "196", "520"]),
        *(["ours", "0.6", "175", "475"], ["flap", "0.8", "216", "556"]),
        ["flap", "0.6", "175", "447"],
    ]


def test_accuracies_of_a_frontier_are_over_the_tasks_of_all_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = json.loads((RESULTS / "frontier-smollm2-135m-cpu.json").read_text())
    whole = json.loads((RESULTS / "frontier-tasks-smollm2-135m-cpu.json").read_text())
    first = whole["cells"][0]["task"]
    parts = [tmp_path / name for name in ("first.json", "others.json", "compared.json")]
    for path, one in zip(parts[:2], (True, False), strict=True):
        cells = [cell for cell in whole["cells"] if (cell["task"] == first) == one]
        path.write_text(json.dumps({**whole, "cells": cells}))
    for row in (*compared["models"], *compared["cells"]):
        key = "name" if "name" in row else "model"
        row[key] = row[key].replace("int8", "[int8]")
    parts[2].write_text(json.dumps(compared))
    words = [str(parts[place]) for place in (2, 0, 1)]
    frontier.main(words)
    printed = capsys.readouterr().out
    assert "46.2 ± 1.1" in printed and "43.9 ± 1.1" in printed and "[int8]" in printed
    dense = whole["models"][0]
    cells = [cell for cell in cells if cell["model"] == dense["name"]]
    alone = tmp_path / "dense.json"
    alone.write_text(json.dumps({**whole, "models": [dense], "cells": cells}))
    for other in (words[1], str(alone)):
        with pytest.raises(InputError, match="differ in a model's tasks, or repeat one"):
            frontier.main([*words[:2], other])


def test_accuracies_of_another_model_or_on_other_items_are_refused(tmp_path: Path) -> None:
    compared = str(RESULTS / "frontier-smollm2-135m-cpu.json")
    whole = json.loads((RESULTS / "frontier-tasks-smollm2-135m-cpu.json").read_text())
    path, (first, *_, last), cell = tmp_path / "tasks.json", whole["models"], whole["cells"][-1]
    for had, has, words in (
        (cell, {**cell, "prompts_sha256": "0"}, "other metrics, shots or prompts of one"),
        (last, {**last, "footprint": first["footprint"]}, "w4a16 of .* or has another footprint"),
        ("recovered-fp8", "recovered-fp4", "recovered-fp4 of .* is not in the comparison"),
    ):
        path.write_text(json.dumps(whole).replace(json.dumps(had), json.dumps(has)))
        with pytest.raises(InputError, match=words):
            frontier.main([compared, str(path)])
