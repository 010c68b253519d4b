"""What gates and scales learn in a compression: the dense model's predictions, or the text."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.compression.mask import fold_scales
from grasp_deploy.compression.prepare import prepare
from grasp_deploy.compression.stages import passes_of
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.pruning.distilling import DensePredictions
from tests.compression.conftest import MakeConfig, compressed


def scaled(config: CompressConfig, output: Path) -> tuple[Plan, list[dict[str, Any]]]:
    """The plan, and the rows of the scales."""
    plan, rows = compressed(config, output)
    return plan, [row for row in rows if row["stage"] == "scales"]


def test_scales_begin_at_what_the_refitted_model_is_without_them(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """By the divergence from the dense model, whose columns were refitted; or by the loss."""
    config = make_config(keep=0.6, method="progressive", rounds=1)
    without, none = scaled(replace(config, scale_epochs=0), tmp_path / "none")
    assert none == [] and without.provenance["compensation"], "columns were refitted"
    heldout = prepare(config).blocks.heldout
    models = (load(path, dtype="float32") for path in (config.model, tmp_path / "none"))
    wanted, predicted = (F.log_softmax(model(heldout).logits, -1) for model in models)
    sums = F.kl_div(predicted, wanted, log_target=True, reduction="sum")
    divergence = float(sums.detach()) / heldout.numel()

    _, rows = scaled(config, tmp_path / "dense")
    assert rows[0]["heldout_divergence"] == pytest.approx(divergence, rel=0.03)
    _, rows = scaled(replace(config, objective="text"), tmp_path / "text")
    loss = without.provenance["losses"]["heldout_pruned"]
    assert rows[0]["heldout_loss"] == pytest.approx(loss, rel=1e-4) and "loss" in rows[0]


def test_the_dense_model_reads_the_text_once(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that gates and scales learn from, where gates learn from less; none of it is kept."""

    def fold(*given: Any) -> dict[str, Path]:
        kept.append([x for x in gc.get_objects() if type(x) is DensePredictions])
        return fold_scales(*given)

    gc.collect()
    kept: list[list[DensePredictions]] = []
    monkeypatch.setattr("grasp_deploy.compression.compress.fold_scales", fold)
    for module in ("prepare", "stages"):
        monkeypatch.setattr(f"grasp_deploy.compression.{module}.GATE_SEQUENCES", 8)
    config = make_config(keep=0.6, rounds=2, batch_size=1)
    _, rows = compressed(config, tmp_path / "out")
    read = [row["step"] for row in rows if row["stage"] == "predictions"]
    assert read == [*range(1, 1 + passes_of(config)["predictions"])] and len(read) > 8 + 1
    gates = [row for row in rows if row["stage"] == "gates"]
    assert [row["step"] for row in gates] == [*range(1, 9)]
    assert gates[0]["heldout_divergence"] > 0 and "divergence" in gates[0]
    told = [stage for stage in dict.fromkeys(row["stage"] for row in rows) if stage != "export"]
    assert told == [*passes_of(config)]
    assert kept == [[]], "while scaled columns are saved"


def test_gates_learn_the_text_if_asked(make_config: MakeConfig, tmp_path: Path) -> None:
    _, rows = compressed(make_config(keep=0.6, rounds=2, objective="text"), tmp_path / "out")
    assert "predictions" not in {row["stage"] for row in rows}
    gates = [row for row in rows if row["stage"] == "gates"]
    assert gates[0]["heldout_loss"] > 0 and "loss" in gates[0]


def test_scales_are_learnt_where_nothing_is_held_out(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(keep=0.6, rounds=2, sequences=1, scale_epochs=2)
    plan, rows = scaled(config, tmp_path / "out")
    assert [row["heldout_divergence"] for row in rows] == [None, None]
    assert bool((plan.scales != 1).any())
