"""A budget in time: what the table says it costs, what is refused, and that every mask holds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.compression.time_budget import TimeBudget, time_budget
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.projection import project
from tests.cli.command import assert_refused, grasp_deploy
from tests.documents import ABSENT, changed
from tests.latency_tables import DECODE, FFN, KV, PREFILL, write_table
from tests.tiny import tiny_config

LAYERS, CHANNELS, GROUPS, TILE = 3, 96, 4, 8


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_config("llama", num_key_value_heads=GROUPS).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def asked(model: Path, tmp_path: Path) -> dict[str, Any]:
    """The model, and a table of it."""
    return {"model": str(model), **write_table(model, tmp_path / "table.json")}


def budget_of(options: dict[str, Any]) -> tuple[TimeBudget, Budget]:
    config = CompressConfig(**options)
    shape = model_shape(read_config(Path(config.model)))
    time = time_budget(config, shape)
    assert time is not None
    return time, budget_for(config, shape, torch.device("cpu"))


def test_the_limit_is_what_the_time_leaves_beside_the_fixed_part(asked: dict[str, Any]) -> None:
    _, budget = budget_of({**asked, "speedup": 1.25})
    assert budget.total_cost == pytest.approx(1e9 * DECODE * (FFN + KV))
    assert budget.limit == pytest.approx(1e9 * DECODE * (1 / 1.25 - (1 - FFN - KV)))
    unit = budget.costs[: CHANNELS + 1]
    assert unit[0] == pytest.approx(1e9 * DECODE * FFN / (LAYERS * CHANNELS))
    assert unit[-1] == pytest.approx(1e9 * DECODE * KV / (LAYERS * GROUPS))
    same = {"tokens_per_second": 8 * 1.25 / DECODE}
    assert budget_of({**asked, **same})[1].limit == pytest.approx(budget.limit)
    of_prefill = budget_of({**asked, "ttft_seconds": PREFILL / 1.25})[1]
    assert of_prefill.limit == pytest.approx(budget.limit * PREFILL / DECODE)


@pytest.mark.parametrize("targets", ["both", "ffn", "kv"])
def test_every_mask_holds_the_time_in_whole_tiles(asked: dict[str, Any], targets: str) -> None:
    time, budget = budget_of({**asked, "speedup": 1.1, "targets": targets, "ffn_multiple": 3})
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        mask = project(torch.rand(budget.units.size, generator=generator), budget)
        seconds = time.seconds(budget.cost_of(mask), budget.total_cost)
        assert seconds <= DECODE / 1.1 * (1 + 1e-9)
        kept = budget.units.kept_per_layer(mask)
        shares = [sum(k) / n for k, n in zip(zip(*kept, strict=True), (288, 12), strict=True)]
        assert seconds == pytest.approx(DECODE * (1 - FFN - KV + FFN * shares[0] + KV * shares[1]))
        if targets != "kv":
            assert all(channels % (3 * TILE) == 0 for channels, _ in kept)


@pytest.mark.parametrize(
    ("option", "value"),
    [("speedup", 2.4), ("tokens_per_second", 8 * 2.4 / DECODE), ("ttft_seconds", PREFILL / 2.4)],
)
def test_beyond_reach_names_the_largest_possible_which_is_accepted(
    asked: dict[str, Any], option: str, value: float
) -> None:
    with pytest.raises(InputError, match="is beyond reach: of the dense model's") as error:
        budget_of({**asked, option: value})
    most = float(str(error.value).split("the fastest possible is --")[1].split()[1])
    budget_of({**asked, option: most})
    with pytest.raises(InputError, match="beyond reach"):
        budget_of({**asked, option: most * (0.999 if option == "ttft_seconds" else 1.001)})


def test_a_time_that_the_dense_model_has_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=r"--ttft 0.3 asks for 300 ms, and .* 200 ms: ask for a faster"
    ):
        budget_of({**asked, "ttft_seconds": 0.3})


@pytest.mark.parametrize(
    ("speedup", "factor", "words"),
    [
        (1.25, 1.4, "slower than the dense model"),
        (1.8, 1.4, "cannot be reached"),
        (1.25, 0.7, "nothing would have to go"),
        (1.25, 1.02, None),
    ],
)
def test_a_measurement_that_no_mask_can_answer_moves_no_limit(
    asked: dict[str, Any], speedup: float, factor: float, words: str | None
) -> None:
    time, budget = budget_of({**asked, "speedup": speedup})
    predicted = DECODE / speedup
    corrected = time.correction(budget, predicted, [predicted * factor] * 3)
    assert corrected.budget is None
    assert corrected.left_out is None if words is None else words in str(corrected.left_out)
    noisy = time.correction(budget, predicted, [predicted * 0.8, predicted * 1.4])
    assert noisy.budget is None, "of two repetitions nothing is claimed"
    moved = time.correction(budget, predicted, [predicted * 1.05] * 3)
    assert moved.left_out is None and moved.budget is not None
    seconds = time.seconds(moved.budget.limit, budget.total_cost)
    assert seconds == pytest.approx(predicted / 1.05)


def test_keep_is_a_share_of_the_time_that_may_go(asked: dict[str, Any]) -> None:
    _, budget = budget_of({**asked, "keep": 0.5, "cost": "latency"})
    assert budget.limit == pytest.approx(1e9 * DECODE * (FFN + KV) / 2)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("machine", "processor"), "Other", r"on another machine \(Other; here: .*measure one .*"),
        (("models", 0, "footprint", "vocab_size"), 255, "was measured for dense, another shape"),
        (("models", 0, "footprint", "dtype"), "bfloat16", "in bfloat16, and .* are float32: .*"),
        (("settings", "device"), "cuda", r"on another machine \(None; here: .*"),
        (("cells", 0, "samples", 0, "tpot_seconds"), 0, r"cells\[0\].samples\[0\].tpot_seconds"),
        (("cells", 0, "samples"), [], r"cells\[0\].samples"),
        (("cells", 0, "dense_samples", 2), ABSENT, "samples and dense_samples do not pair up"),
        (("settings",), ABSENT, "`settings`"),
        (("benchmark",), "kv", "a record of kv, not a table: measure one"),
        (("cells",), [], "cells"),
    ],
)
def test_tables_that_do_not_fit(
    asked: dict[str, Any], place: tuple[str | int, ...], value: Any, words: str
) -> None:
    path = Path(asked["table"])
    path.write_text(json.dumps(changed(json.loads(path.read_text()), place, value)))
    with pytest.raises(InputError, match=words) as error:
        budget_of({**asked, "speedup": 1.2})
    assert "table.json" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", [None, "words", '{"a": NaN}', '{"schema_version": 1', "{}", "[]"])
def test_what_is_no_table_asks_for_one(asked: dict[str, Any], text: str | None) -> None:
    path = Path(asked["table"])
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=r"table.json.*: measure one with grasp-deploy table$"):
        budget_of({**asked, "speedup": 1.2})


@pytest.mark.parametrize(
    "edit",
    [
        lambda table: table.update(cells=table["cells"][:1]),
        lambda table: table.update(cells=[c for c in table["cells"] if c["kv_groups"] == GROUPS]),
        lambda table: table["cells"].append(table["cells"][0]),
        lambda table: table["cells"][0].update(ffn_channels=8 * CHANNELS),
        lambda table: table["cells"][0].update(batch=1),
        lambda table: [table["cells"][0][name].pop() for name in ("samples", "dense_samples")],
        lambda table: table["settings"].update(contexts=[64, 128]),
        lambda table: table["settings"].update(tile=CHANNELS),
        lambda table: table["settings"].update(steps=10**12),
    ],
)
def test_a_table_that_is_not_whole_is_no_price(
    asked: dict[str, Any], edit: Callable[[dict[str, Any]], object]
) -> None:
    path = Path(asked["table"])
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"table.json is unfinished or edited: measure it again"):
        budget_of({**asked, "speedup": 1.2})


def test_no_times_at_that_batch_and_no_price_in_those_that_are_there(
    asked: dict[str, Any],
) -> None:
    with pytest.raises(InputError, match=r"no times at batch 1 and context 64, only at 8 and 64"):
        budget_of({**asked, "batch": 1, "speedup": 1.2})
    path = Path(asked["table"])
    document = json.loads(path.read_text())
    for cell in document["cells"]:
        cell["samples"] = cell["dense_samples"]
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"make no price .* on a quieter machine"):
        budget_of({**asked, "speedup": 1.2})


def test_ffn_channels_without_a_price_must_fill_whole_tiles(
    asked: dict[str, Any], model: Path
) -> None:
    def free(tile: int) -> dict[str, Any]:
        options = write_table(model, Path(asked["table"]), tile=tile)
        document = json.loads(Path(options["table"]).read_text())
        for cell in document["cells"]:
            if cell["kv_groups"] == GROUPS:  # fewer channels are slower than all of them
                cell["samples"] = [{**s, "tpot_seconds": DECODE * 2} for s in cell["samples"]]
        Path(options["table"]).write_text(json.dumps(document))
        return {**asked, "speedup": 1.05}

    time, budget = budget_of(free(32))
    assert time.price.ffn_seconds == 0 and budget.least_kept[0] == CHANNELS
    with pytest.raises(
        InputError, match=r"no price at batch 8 and context 64 .*has --tile 40\).* --set targets=kv"
    ):
        budget_of(free(40))
    _, of_groups = budget_of({**free(40), "targets": "kv"})
    assert of_groups.ffn_multiple == 1


def test_the_command_refuses_in_one_line(asked: dict[str, Any], tmp_path: Path) -> None:
    options = ("--table", asked["table"], "--batch", "8", "--context", "64", "--speedup", "9")
    for command in ("compress", "fit"):
        ended = grasp_deploy(command, asked["model"], "-o", tmp_path / "out", *options)
        assert_refused(ended, "")
        assert not (tmp_path / "out").exists()
