"""Groups, tags and tasks whose answers are generated."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from grasp_deploy.evaluate.tasks.harness import run_task, transformers_lm
from grasp_deploy.evaluate.tasks.settings import RunSettings
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval
from tests.tiny import tiny_model, tiny_tokenizer

pytestmark = needs_lm_eval
ACCURACY = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An index of two small tasks, a group and a tag of both, and one with generated answers."""
    from lm_eval.tasks import TaskManager

    folder = tmp_path_factory.mktemp("tasks")
    for name, items in (("few", 3), ("many", 7)):
        rows = [
            {"query": f"{name} {i}", "choices": ["a", "bc", "def"], "gold": i % 3}
            for i in range(items)
        ]
        more = {"tag": "both_apart", "output_type": "multiple_choice", "doc_to_choice": "choices"}
        write_task(folder, name, rows, **more, doc_to_target="gold", metric_list=[ACCURACY])
    group: dict[str, Any] = {"group": "both", "task": ["few", "many"]}
    group["aggregate_metric_list"] = [{"metric": "acc", "weight_by_size": True}]
    (folder / "both.yaml").write_text(yaml.safe_dump(group))
    prompts = [f"Spell {i}:" for i in range(4)]
    rows = [
        {"query": prompt, "answer": spelled(prompt) if i % 2 else "no such answer"}
        for i, prompt in enumerate(prompts)
    ]
    write_task(
        folder,
        "spelling",
        rows,
        output_type="generate_until",
        doc_to_target="answer",
        generation_kwargs={"until": ["no end"], "max_gen_toks": 4, "do_sample": False},
        metric_list=[{**ACCURACY, "metric": "exact_match"}],
    )
    return TaskManager(include_path=folder, include_defaults=False)


def write_task(folder: Path, name: str, rows: list[dict[str, Any]], **config: Any) -> None:
    """A task of lm-eval's with local items."""
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"data_files": str(folder / f"{name}.jsonl"), "cache_dir": str(folder / "cache")}
    where = {"dataset_path": "json", "dataset_kwargs": files, "test_split": "train"}
    config = {"task": name, **where, "doc_to_text": "query", **config}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))


def spelled(prompt: str) -> str:
    """The four likeliest bytes, one after the other."""
    model, ids = tiny_model("llama"), [*prompt.encode()]
    with torch.no_grad():
        for _ in range(4):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return str(tiny_tokenizer().decode(ids[-4:]))


def cells(manager: Any, name: str) -> list[dict[str, Any]]:
    lm = transformers_lm(tiny_model("llama"), tiny_tokenizer(), 1, 512)
    return run_task(lm, name, manager.load([name]), RunSettings(), lambda done, requests: None)


def test_a_group_is_one_cell_over_all_its_items(manager: Any) -> None:
    (cell,) = cells(manager, "both")
    assert (cell["task"], cell["metric"], cell["num_fewshot"]) == ("both", "acc", 0)
    assert [item["task"] for item in cell["items"]] == ["few"] * 3 + ["many"] * 7
    assert cell["accuracy"] == pytest.approx(statistics.fmean(i["acc"] for i in cell["items"]))
    assert 0 < cell["standard_error"] < 0.5


def test_a_tag_is_a_cell_for_each_of_its_tasks(manager: Any) -> None:
    found = cells(manager, "both_apart")
    assert {cell["task"]: len(cell["items"]) for cell in found} == {"few": 3, "many": 7}
    assert all("task" not in item for cell in found for item in cell["items"])


def test_generated_answers_count_by_exact_match(manager: Any) -> None:
    (cell,) = cells(manager, "spelling")
    assert (cell["metric"], cell["accuracy"]) == ("exact_match", 0.5)
    assert [item["exact_match"] for item in cell["items"]] == [0, 1, 0, 1]
    assert cell["items"][1]["answer"] == [spelled("Spell 1:")]
    assert "loglikelihoods" not in cell["items"][0]
