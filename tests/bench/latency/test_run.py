"""`table`: the shapes it measures, points that are kept when it stops, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.bench.kinds import read_sections
from grasp_deploy.bench.latency.run import bench_latency
from grasp_deploy.bench.throughput.engines import MODULES
from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.compression.table_shapes import sizes_to_measure
from grasp_deploy.config.latency_options import LatencySettings
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.files.record import read_record
from tests.cli.command import REPOSITORY, assert_refused, document, grasp_deploy
from tests.tiny import tiny_config

LAYERS_OF_7B = {"num_key_value_heads": 32, "num_attention_heads": 32, "intermediate_size": 11008}
SMALL = {"engine": "transformers", "device": "cpu", "contexts": (16, 32), "new_tokens": 4}
QUICK = {**SMALL, "tile": 32, "steps": 2, "repetitions": 2, "side_by_side": 2, "batches": (1, 3)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A config.json alone: 96 FFN channels and 4 groups a layer."""
    tiny_config("llama", num_key_value_heads=4).to_json_file(tmp_path / "model.json")
    return tmp_path / "model.json"


@pytest.fixture
def engine_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Children without a model; gives the log of their requests."""
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setitem(MODULES, "transformers", "tests.bench.throughput.fake_engine")
    return tmp_path / "log"


def measured(model: Path, **changes: Any) -> Any:
    (dense,) = bench_models([str(model)], random_weights=True)
    settings = LatencySettings(**{**QUICK, **changes})
    return bench_latency(dense, settings, ["table"], model.with_name("kept.json"))


def test_widths_are_even_steps_in_whole_tiles() -> None:
    shape = model_shape(tiny_config("llama", **LAYERS_OF_7B).to_dict())
    sizes = sizes_to_measure(shape, LatencySettings(steps=4))
    widths = [43 * 64, 86 * 64, 129 * 64]
    assert sizes == [
        *((width, 32) for width in widths),
        *((11008, groups) for groups in (8, 16, 24)),
        *((widths[0], 8), (widths[1], 16)),
    ]
    one_group = model_shape(tiny_config("llama", num_key_value_heads=1).to_dict())
    assert sizes_to_measure(one_group, LatencySettings(tile=32)) == [(32, 1), (64, 1)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tile": 96}, "--tile 96 leaves no width below the model's 96 FFN channels"),
        ({"contexts": (4,)}, "--context 4 leaves no prompt before 4 new tokens"),
        ({"contexts": (600,)}, "512 positions .* made for: lower --context"),
    ],
)
def test_what_cannot_be_measured(model: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        measured(model, **changes)


def test_a_stopped_table_goes_on_where_it_was(
    model: Path, engine_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measured(model)
    points = [(c.ffn_channels, c.kv_groups, c.batch, c.context) for c in whole.cells]
    sizes = [(64, 4), (96, 2), (64, 2)]
    assert points == [(*one, b, c) for c in (16, 32) for b in (1, 3) for one in sizes]
    assert all(len(cell.samples) == len(cell.dense_samples) == 2 for cell in whole.cells)

    kept = model.with_name("kept.json")
    record = json.loads(kept.read_text())
    record["cells"] = record["cells"][:6]  # as if it had stopped in the middle
    kept.write_text(json.dumps(record))
    engine_log.unlink()
    assert measured(model, side_by_side=4).cells == whole.cells
    turns = [json.loads(line)[0][0] for line in engine_log.read_text().splitlines()]
    assert len(turns) == 2 * 3 * 4  # batches, warm-up and repetitions, the dense one and 3 shapes

    del record["cells"][1]  # of three sizes, one lacks a batch
    record["cells"] += [record["cells"][0]]
    kept.write_text(json.dumps(record))
    engine_log.unlink()
    assert measured(model).cells == whole.cells
    turns = [json.loads(line)[0][0] for line in engine_log.read_text().splitlines()]
    assert len(turns) == 4 * 2 * 3 * 2  # sizes, batches, warm-up and repetitions, both models

    with pytest.raises(InputError, match=r"begun with --tile 32, lies in .*kept.json: give the"):
        measured(model, tile=16)
    with pytest.raises(InputError, match="begun with --batch 1,3, --context 16,32, lies in"):
        measured(model, batches=(1,), contexts=(16,))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with pytest.raises(InputError, match="begun with another machine"):
        measured(model)


@pytest.mark.usefixtures("engine_log")
def test_the_command_writes_a_record_that_report_draws(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "table.json"
    options = ("--engine", "transformers", "--device", "cpu", "--tile", "32", "--steps", "2")
    at = ("--batch", "3", "--context", "16", "--new-tokens", "4", "--repetitions", "2")
    record = document("table", model, *options, *at, "-o", output, "--json")
    assert record == read_record(output)
    assert not output.with_name("table.json.partial").exists()
    (section,) = read_sections([output])
    assert [table.row_count for table in section.tables()] == [4, 4, 4]
    assert_refused(grasp_deploy("table", tmp_path / "none.json", "-o", output), "there is no file")
    once = grasp_deploy("table", model, "-o", output, "--repetitions", "1")
    assert_refused(once, "--repetitions 1 is not allowed: give a whole number from 2")
