"""lm-eval's own command runs in the environment that `make setup` makes."""

import json
from pathlib import Path

import pytest

from tests.cli.command import run_process
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval, write_items


@pytest.mark.slow
@needs_lm_eval
def test_it_prints_the_table_of_a_local_task(tmp_path: Path, demo_model: Path) -> None:
    pytest.importorskip("pytablewriter", reason="make setup installs it")
    task = {
        "task": "local_items",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(write_items(tmp_path)["query"])}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "query",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "local_items.yaml").write_text(json.dumps(task))  # JSON is YAML
    ended = run_process(
        *("-m", "lm_eval", "run", "--model", "hf", "--tasks", "local_items", "--device", "cpu"),
        *("--model_args", f"pretrained={demo_model}", "--include_path", tmp_path, "--limit", "4"),
        HF_DATASETS_CACHE=str(tmp_path / "cache"),
        HF_HUB_OFFLINE="1",
    )
    assert ended.code == 0, ended.stderr
    assert "|local_items|" in ended.stdout.replace(" ", "")
