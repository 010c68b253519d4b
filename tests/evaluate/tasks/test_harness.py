"""lm-eval's accuracies against a computation of our own, item by item."""

from __future__ import annotations

import json
import logging
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.data import corpora
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks import harness
from grasp_deploy.evaluate.tasks.harness import run_task, transformers_lm
from grasp_deploy.evaluate.tasks.loading import load_tasks
from grasp_deploy.evaluate.tasks.settings import RunSettings
from tests.evaluate.tasks.tiny_tasks import expected, needs_lm_eval, write_items
from tests.tiny import tiny_model, tiny_tokenizer

pytestmark = needs_lm_eval
LAYOUTS = ("query", "contexts", "hellaswag")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_items(tmp_path_factory.mktemp("items"))


@pytest.fixture(scope="module")
def cells(files: dict[str, Path]) -> dict[str, dict[str, Any]]:
    lm = transformers_lm(tiny_model("llama"), tiny_tokenizer(), batch_size=4, max_tokens=512)
    tasks = load_tasks([], list(files.values()))
    return {name: run_task(lm, name, task, RunSettings(), None)[0] for name, task in tasks.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_a_computation_by_hand(
    layout: str, files: dict[str, Path], cells: dict[str, dict[str, Any]]
) -> None:
    model, cell = tiny_model("llama"), cells[layout]
    rows = [json.loads(line) for line in files[layout].read_text().splitlines()]
    by_hand = [expected(model, layout, row) for row in rows]
    assert [item["item"] for item in cell["items"]] == list(range(12))
    for item, wanted in zip(cell["items"], by_hand, strict=True):
        assert item["loglikelihoods"] == pytest.approx(wanted.pop("loglikelihoods"), abs=1e-4)
        assert {key: item[key] for key in wanted} == wanted
        assert set(item) - {"item", "loglikelihoods"} == set(wanted)
    metric = "acc" if layout == "contexts" else "acc_norm"
    right = [wanted[metric] for wanted in by_hand]
    assert cell["metric"] == metric
    assert cell["accuracy"] == pytest.approx(statistics.fmean(right))
    assert cell["standard_error"] == pytest.approx(statistics.stdev(right) / 12**0.5)
    assert 0 < cell["accuracy"] < 1  # all or none would prove little


def test_a_cell_is_json_and_says_how_it_was_run(cells: dict[str, dict[str, Any]]) -> None:
    cell = json.loads(json.dumps(cells["query"]))
    assert (cell["task"], cell["num_fewshot"], cell["truncated"]) == ("query", 0, 0)
    assert len({cells[layout]["prompts_sha256"] for layout in LAYOUTS}) == 3
    assert {"acc,none", "acc_norm,none", "acc_stderr,none"} <= set(cell["metrics"])


def test_an_answer_that_does_not_fit_is_refused(files: dict[str, Path]) -> None:
    (task,) = load_tasks([], [files["query"]]).values()
    lm = transformers_lm(tiny_model("llama"), tiny_tokenizer(), 4, max_tokens=2)
    own = lm._loglikelihood_tokens
    with pytest.raises(InputError, match=r"query has an answer of 16 tokens.* 2 at most: raise"):
        run_task(lm, "query", task, RunSettings(), None)
    assert lm._loglikelihood_tokens == own


def test_examples_come_from_other_items_and_the_seed_chooses_them(files: dict[str, Path]) -> None:
    lm = transformers_lm(tiny_model("llama"), tiny_tokenizer(), 4, 512)
    (task,) = load_tasks([], [files["query"]]).values()
    one, same, other = (
        run_task(lm, "query", task, RunSettings(limit=5, num_fewshot=2, seed=seed), None)[0]
        for seed in (1, 1, 2)
    )
    assert one["num_fewshot"] == 2
    assert one == same
    assert one["prompts_sha256"] != other["prompts_sha256"]
    prompts = [instance.args[0] for instance in task["tasks"]["query"].instances]
    assert len(prompts) == 5 * 3
    for index in range(5):
        assert prompts[3 * index].count("Answer: ") == 2
        assert prompts[3 * index].count(f"Question: {index}?") == 1


def test_progress_and_an_lm_that_is_left_as_it_was(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "PORTION_REQUESTS", 10)
    lm = transformers_lm(tiny_model("llama"), tiny_tokenizer(), 4, 512)
    (task,) = load_tasks([], [files["query"]]).values()
    seen: list[tuple[int, int]] = []
    run_task(lm, "query", task, RunSettings(), lambda done, all_of: seen.append((done, all_of)))
    assert seen == [(10, 36), (20, 36), (30, 36), (36, 36)]
    assert not set(harness.REQUEST_KINDS) & set(vars(lm))
    assert logging.getLogger("lm_eval").propagate


def test_prompts_that_are_too_long_are_counted(files: dict[str, Path]) -> None:
    lm = transformers_lm(tiny_model("llama"), tiny_tokenizer(), 4, max_tokens=24)
    (task,) = load_tasks([], [files["query"]]).values()
    cell = run_task(lm, "query", task, RunSettings(), None)[0]
    # "Question: 0?\nAnswer:" is 20 bytes; " a longer answer" and " over there" do not fit.
    rows = [json.loads(line) for line in files["query"].read_text().splitlines()]
    pairs = [(row["query"], choice) for row in rows for choice in row["choices"]]
    assert cell["truncated"] == sum(len(q) + 8 + 1 + len(c) > 25 for q, c in pairs) > 0


def test_a_tokenizer_of_another_model() -> None:
    model = tiny_model("llama", vocab_size=128)
    with pytest.raises(InputError, match="256 tokens and the model's vocabulary only 128"):
        transformers_lm(model, tiny_tokenizer(), 1, 512)


def test_log_probabilities_are_float32_whatever_the_model(files: dict[str, Path]) -> None:
    model = tiny_model("llama", dtype=torch.bfloat16)
    lm = transformers_lm(model, tiny_tokenizer(), 1, 512)
    (task,) = load_tasks([], [files["query"]]).values()
    item = run_task(lm, "query", task, RunSettings(limit=1), None)[0]["items"][0]
    ids = torch.tensor([[*b"Question: 0?\nAnswer: cat"]])
    with torch.no_grad():
        scores = model(ids[:, :-1]).logits[0].float().log_softmax(-1)
    wanted = scores[-4:].gather(1, ids[0, -4:, None]).sum().item()
    assert item["loglikelihoods"][0] == pytest.approx(wanted, abs=0.02)


def test_unknown_names_are_answered_with_close_ones() -> None:
    with pytest.raises(
        InputError, match=r"lm-eval has no task 'arc_eazy': did you mean .*arc_easy"
    ):
        load_tasks(["arc_eazy"], [])


def test_the_hub_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(corpora, "REACH_SECONDS", 1.0)
    with pytest.raises(InputError, match=r"the items of sciq cannot be fetched: .*--task-file"):
        load_tasks(["sciq"], [])


def test_items_that_cannot_be_loaded_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"task sciq cannot be loaded \(\w+: .*--task-file"):
        load_tasks(["sciq"], [])
