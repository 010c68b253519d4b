"""Tasks of lm-eval's own names: what is unknown, out of reach or without an accuracy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks import loading
from grasp_deploy.evaluate.tasks.loading import load_tasks
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval

pytestmark = needs_lm_eval


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for lm-eval's index of its tasks, which takes many seconds to make."""

    def load(specs: list[Any]) -> dict[str, Any]:
        task = SimpleNamespace(aggregation=lambda: {"word_perplexity": sum})
        return {"tasks": {specs[0]: task}, "groups": {}}

    known = SimpleNamespace(all_tasks=["arc_easy", "sciq"], load=load)
    monkeypatch.setattr(loading, "_manager", lambda include_defaults: known)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def test_unknown_names_are_answered_with_close_ones(index: None) -> None:
    with pytest.raises(InputError, match=r"no task 'arc_eazy': did you mean arc_easy\?"):
        load_tasks(["arc_eazy"], [])


def test_a_task_without_accuracy_is_refused(index: None) -> None:
    with pytest.raises(InputError, match=r"task sciq has no accuracy .*word_perplexity"):
        load_tasks(["sciq"], [])


def test_the_hub_out_of_reach_is_one_line(index: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"items of sciq cannot be fetched: .*--task-file"):
        load_tasks(["sciq"], [])


@pytest.mark.slow
def test_items_that_cannot_be_loaded_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"task sciq cannot be loaded \(\w+: .*--task-file"):
        load_tasks(["sciq"], [])
