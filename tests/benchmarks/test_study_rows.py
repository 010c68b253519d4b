"""What rows of a study may hold besides: what the budget goes to, and accuracies on tasks."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.demo.run import MODEL
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.evaluate.tasks.run import bench_tasks
from grasp_deploy.evaluate.tasks.settings import TaskSettings
from grasp_deploy.healing.heal import NothingWon
from grasp_deploy.report.records import check_record
from tests.benchmarks import scripts  # noqa: F401  so that Python finds them
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval, write_items

import quality  # isort: skip
import study_rows  # isort: skip
import variant_healing  # isort: skip
import variants  # isort: skip


def test_mean_scores_are_those_of_the_kept_units_of_each_kind() -> None:
    scores = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, math.inf])
    mask = torch.tensor([True, False, True, True, True, False])
    is_kv = torch.tensor([False, False, False, True, True, True])
    costs = torch.tensor([1.0, 1.0, 1.0, 3.0, 3.0, 3.0], dtype=torch.float64)
    found = variants.allocation(Plan(scores, mask, torch.ones(6), {}), costs, is_kv)
    assert found == {
        **{"ffn_share_of_kept_cost": 0.25, "kv_share_of_kept_cost": 0.75},
        **{"mean_kept_ffn_score": 2.5, "mean_kept_kv_score": 12.0},
    }
    unknown = variants.allocation(Plan(scores, ~mask, torch.ones(6), {}), costs, is_kv)
    assert (unknown["mean_kept_ffn_score"], unknown["mean_kept_kv_score"]) == (2.0, None)


def test_accuracies_with_scales_are_not_those_of_the_mask_alone() -> None:
    row = {"options": {"scale_epochs": 1}, "keep": 0.5, "seed": 0, "seconds": {}, "perplexity": {}}
    row |= {"without_scales": {"perplexity": {}}, "heldout_loss": {}}
    options, alone = (study_rows.key({"scale_epochs": epochs}) for epochs in (1, 0))
    assert study_rows.by_options(row).keys() == {(options, 0.5, 0), (alone, 0.5, 0)}
    row |= {"tasks": {"piqa": {"accuracy": 0.6}}, "task_average": {"accuracy": 0.6}}
    assert study_rows.by_options(row) == {(options, 0.5, 0): row}


class NothingWonHere(NothingWon):
    def __init__(self) -> None:
        self.loss_before, self.seconds = 4.5, 7.0
        InputError.__init__(self, "healing won nothing")


def test_a_study_goes_on_where_healing_wins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is that of the unhealed model, and says so."""

    def nothing(*_: object, **__: object) -> None:
        raise NothingWonHere

    path = tmp_path / "record.json"
    monkeypatch.setattr(quality, "check_installed", lambda: None)
    monkeypatch.setattr(variant_healing, "heal", nothing)
    monkeypatch.setattr(sys, "argv", ["quality.py", "healing", "--smoke", "--output", str(path)])
    quality.main()
    record = json.loads(path.read_text())
    check_record(record, path)
    pruned, healed = record["rows"]
    assert healed["perplexity"] == pruned["perplexity"]
    losses = healed["heldout_loss"]
    assert losses["heldout_healed"] == losses["heldout_before_healing"] == 4.5
    assert healed["seconds"]["healing"] == 7.0


@needs_lm_eval
def test_a_study_with_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dense model's accuracies are those of `evaluate tasks`, to the item."""
    path, files = tmp_path / "record.json", write_items(tmp_path)
    command = ["quality.py", "targets", "--smoke", "--variants", "kv", "--output", str(path)]
    command += ["--task-limit", "6"]
    for name in ("query", "contexts"):
        command += ["--task-file", str(files[name])]
    monkeypatch.setattr(sys, "argv", command)
    quality.main()
    table, record = capsys.readouterr().out, json.loads(path.read_text())
    check_record(record, path)
    assert record["settings"]["task_limit"] == 6 and "lm_eval" in record["versions"]
    limits = TaskSettings(task_files=(files["query"], files["contexts"]), limit=6, dtype="float32")
    expected = bench_tasks(bench_models([str(MODEL)], dtype="float32"), limits, [])
    assert record["dense_tasks"] == {
        cell["task"]: {
            **{"metric": cell["metric"], "accuracy": cell["accuracy"]},
            "standard_error": cell["standard_error"],
        }
        for cell in expected["cells"]
    }
    assert record["dense_task_average"]["accuracy"] == expected["averages"][0]["accuracy"]
    assert record["dense_tasks"]["query"]["metric"] == "acc_norm"
    (row,) = record["rows"]
    assert row["tasks"].keys() == {"query", "contexts"}
    assert "Accuracy on tasks" in table and "query" in table
    monkeypatch.setattr(sys, "argv", [*command[:7], *command[9:]])  # all items, another study
    with pytest.raises(InputError, match="was measured with task_limit 6, and not None"):
        quality.main()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tasks", "piqa"], "lm-eval is not installed: run pip install"),
        (["--tasks", "piqa,,arc_easy"], "names nothing at one place"),
        (["--tasks", "piqa", "--task-limit", "0"], "--task-limit 0 leaves no item"),
        (["--task-limit", "5"], "--task-limit is of no task"),
        (["--variants", "both;nope"], "--variants nope is no variant of targets: choose of both"),
    ],
)
def test_tasks_that_cannot_be_run_are_refused_before_anything_is_measured(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    no_model = ["--model", str(tmp_path / "no model")]  # so that loading it would fail
    monkeypatch.setattr(sys, "argv", ["quality.py", "targets", "--smoke", *no_model, *options])
    with pytest.raises(InputError) as refused:
        quality.main()
    assert words in str(refused.value)
