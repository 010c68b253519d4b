"""lm-eval's accuracies against a computation of our own, item by item."""

import json
import logging
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
import yaml

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.settings import TaskSettings
from grasp_deploy.evaluate.tasks import harness
from grasp_deploy.evaluate.tasks.harness import load_tasks, run_task, transformers_lm, tried_tasks
from tests.evaluate.tasks.tiny_tasks import expected, needs_lm_eval, write_items
from tests.tiny import logits_of, tiny_model, tiny_tokenizer

pytestmark = needs_lm_eval
LAYOUTS = ("query", "contexts", "hellaswag")
ACCURACY = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_items(tmp_path_factory.mktemp("items"))


@pytest.fixture
def query(files: dict[str, Path]) -> Any:
    (task,) = load_tasks([], [files["query"]]).values()
    return task


def tiny_lm(max_tokens: int = 512) -> Any:
    return transformers_lm(tiny_model("llama"), tiny_tokenizer(), 4, max_tokens)


@pytest.fixture(scope="module")
def cells(files: dict[str, Path]) -> dict[str, dict[str, Any]]:
    lm, tasks = tiny_lm(), load_tasks([], list(files.values()))
    return {name: run_task(lm, name, task, TaskSettings())[0] for name, task in tasks.items()}


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


def test_an_answer_that_does_not_fit_is_refused(query: Any) -> None:
    words = r"task query cannot run .* need 16 tokens .* 2 at most\): change"
    with pytest.raises(InputError, match=words):
        run_task(tiny_lm(max_tokens=2), "query", query, TaskSettings())


def test_log_likelihoods_that_are_not_finite_are_no_accuracy(query: Any) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    lm = transformers_lm(model, tiny_tokenizer(), 4, 512)
    with pytest.raises(InputError, match=r"are \[nan, .* no accuracy: .* broken .*--dtype float32"):
        run_task(lm, "query", query, TaskSettings(limit=1))


def test_examples_come_from_other_items_and_the_seed_chooses_them(query: Any) -> None:
    lm = tiny_lm()
    one, same, other = (
        run_task(lm, "query", query, TaskSettings(limit=5, num_fewshot=2, seed=seed))[0]
        for seed in (1, 1, 2)
    )
    assert one["num_fewshot"] == 2
    assert one == same == json.loads(json.dumps(one))
    assert one["prompts_sha256"] != other["prompts_sha256"]
    prompts = [instance.args[0] for instance in query["tasks"]["query"].instances]
    assert len(prompts) == 5 * 3
    for index in range(5):
        assert prompts[3 * index].count("Answer: ") == 2
        assert prompts[3 * index].count(f"Question: {index}?") == 1


def test_progress_in_portions_and_a_log_that_speaks_again(
    query: Any, cells: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grasp_deploy.evaluate.tasks.harness.PORTION_REQUESTS", 10)
    seen: list[tuple[int, int]] = []
    found = run_task(tiny_lm(), "query", query, TaskSettings(), lambda *done: seen.append(done))
    assert seen == [(10, 36), (20, 36), (30, 36), (36, 36)]
    assert found[0]["accuracy"] == cells["query"]["accuracy"]
    assert logging.getLogger("lm_eval").propagate


def test_prompts_that_are_too_long_are_counted(files: dict[str, Path], query: Any) -> None:
    cell = run_task(tiny_lm(max_tokens=24), "query", query, TaskSettings())[0]
    # "Question: 0?\nAnswer:" is 20 bytes; " a longer answer" and " over there" do not fit.
    rows = [json.loads(line) for line in files["query"].read_text().splitlines()]
    pairs = [(row["query"], choice) for row in rows for choice in row["choices"]]
    assert cell["truncated"] == sum(len(q) + 8 + 1 + len(c) > 25 for q, c in pairs) > 0


def test_log_probabilities_are_float32_whatever_the_model(query: Any) -> None:
    model = tiny_model("llama", dtype=torch.bfloat16)
    lm = transformers_lm(model, tiny_tokenizer(), 1, 512)
    item = run_task(lm, "query", query, TaskSettings(limit=1))[0]["items"][0]
    ids = torch.tensor([[*b"Question: 0?\nAnswer: cat"]])
    scores = logits_of(model, ids[:, :-1])[0].float().log_softmax(-1)
    wanted = scores[-4:].gather(1, ids[0, -4:, None]).sum().item()
    assert item["loglikelihoods"][0] == pytest.approx(wanted, abs=0.02)


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An index of two small tasks, a group and a tag of both, and one with generated answers."""
    from lm_eval.tasks import TaskManager

    folder = tmp_path_factory.mktemp("tasks")
    for name, items in (("few", 3), ("many", 7)):
        rows = [
            {"query": f"{name} {i}", "choices": ["a", "bc", "def"], "answer": i % 3}
            for i in range(items)
        ]
        choices = {"output_type": "multiple_choice", "doc_to_choice": "choices"}
        write_task(folder, name, rows, tag="both_apart", metric_list=[ACCURACY], **choices)
    group: dict[str, Any] = {"group": "both", "task": ["few", "many"]}
    group["aggregate_metric_list"] = [{"metric": "acc", "weight_by_size": True}]
    (folder / "both.yaml").write_text(yaml.safe_dump(group))
    prompts = [f"Spell {i}:" for i in range(4)]
    rows = [
        {"query": prompt, "answer": spelled(prompt) if i % 2 else "no such answer"}
        for i, prompt in enumerate(prompts)
    ]
    written: dict[str, Any] = {
        "output_type": "generate_until",
        "generation_kwargs": {"until": ["no end"], "max_gen_toks": 4, "do_sample": False},
        "metric_list": [{**ACCURACY, "metric": "exact_match"}],
    }
    write_task(folder, "spelling", rows, **written)
    write_task(folder, "blank", [{"query": " ", "answer": "a"}], **written)
    return TaskManager(include_path=folder, include_defaults=False)


def write_task(folder: Path, name: str, rows: list[dict[str, Any]], **config: Any) -> None:
    """A task of lm-eval's with local items."""
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"data_files": str(folder / f"{name}.jsonl"), "cache_dir": str(folder / "cache")}
    where = {"dataset_path": "json", "dataset_kwargs": files, "test_split": "train"}
    document = {"task": name, "doc_to_text": "query", "doc_to_target": "answer"}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**document, **where, **config}))


def spelled(prompt: str) -> str:
    """The four likeliest bytes, one after the other."""
    model, ids = tiny_model("llama"), [*prompt.encode()]
    for _ in range(4):
        ids.append(int(logits_of(model, torch.tensor([ids]))[0, -1].argmax()))
    return str(tiny_tokenizer().decode(ids[-4:]))


def test_a_group_is_one_cell_and_a_tag_one_for_each_of_its_tasks(manager: Any) -> None:
    (cell,) = run_task(tiny_lm(), "both", manager.load(["both"]), TaskSettings())
    assert (cell["task"], cell["metric"], cell["num_fewshot"]) == ("both", "acc", 0)
    assert [item["task"] for item in cell["items"]] == ["few"] * 3 + ["many"] * 7
    assert cell["accuracy"] == pytest.approx(statistics.fmean(i["acc"] for i in cell["items"]))
    assert 0 < cell["standard_error"] < 0.5
    found = run_task(tiny_lm(), "both_apart", manager.load(["both_apart"]), TaskSettings())
    assert {cell["task"]: len(cell["items"]) for cell in found} == {"few": 3, "many": 7}
    assert all("task" not in item for cell in found for item in cell["items"])
    short = tiny_lm(max_tokens=7)  # no room for "few 0 def", "many 0 bc" and "many 0 def"
    cut = run_task(short, "both_apart", manager.load(["both_apart"]), TaskSettings())
    assert {cell["task"]: cell["truncated"] for cell in cut} == {"few": 3, "many": 14}


def test_generated_answers_count_by_exact_match(manager: Any) -> None:
    (cell,) = run_task(tiny_lm(), "spelling", manager.load(["spelling"]), TaskSettings())
    assert (cell["metric"], cell["accuracy"]) == ("exact_match", 0.5)
    assert [item["exact_match"] for item in cell["items"]] == [0, 1, 0, 1]
    assert cell["items"][1]["answer"] == [spelled("Spell 1:")]
    assert "loglikelihoods" not in cell["items"][0]


def test_tasks_are_tried_before_a_model_loads(
    manager: Any, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "_manager", lambda include_defaults: manager)
    own, late = [tiny_tokenizer()], TaskSettings(task_files=(files["contexts"],), max_tokens=10)
    with pytest.raises(InputError, match="need 11 tokens or more"):  # of items 10 and 11
        tried_tasks(late, own)
    assert list(tried_tasks(replace(late, limit=10), own)) == ["contexts"]
    fits = TaskSettings(tasks=("spelling", "both", "few"), max_tokens=5, num_fewshot=2)
    assert list(tried_tasks(fits, own)) == ["spelling", "both", "few"]
    blank = replace(fits, tasks=("blank",), num_fewshot=None)
    assert list(tried_tasks(blank, own)) == ["blank"], "as a prompt may be"
    with pytest.raises(InputError, match=r"spelling cannot run .* need 5 tokens or more, .* 4 at"):
        tried_tasks(replace(fits, max_tokens=4), own)
    with pytest.raises(InputError, match=r"task both cannot run \(ValueError: .*--num-fewshot or"):
        tried_tasks(replace(fits, tasks=("both",), num_fewshot=8), own)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for lm-eval's index of its tasks, which takes many seconds to make."""

    def load(specs: list[Any]) -> dict[str, Any]:
        is_group = specs[0] == "both"
        metric = "word_perplexity" if specs[0] == "sciq" else "acc"
        task = SimpleNamespace(aggregation=lambda: {metric: sum})
        groups = {"both": SimpleNamespace(aggregate_metric_list=None)} if is_group else {}
        names = ["arc_easy", "arc_challenge"] if specs[0] == "ai2_arc" else specs
        return {"tasks": dict.fromkeys(names, task), "groups": groups}

    known = SimpleNamespace(all_tasks=["arc_easy", "sciq", "both", "ai2_arc"], load=load)
    monkeypatch.setattr(harness, "_manager", lambda include_defaults: known)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["arc_eazy"], r"no task 'arc_eazy': did you mean arc_easy\?"),
        (["sciq"], r"task sciq has no accuracy .*word_perplexity"),
        (["both"], r"group both has no accuracy \(its metrics: none\)"),
        (["ai2_arc", "arc_easy"], "task arc_easy is named twice, once by a tag"),
    ],
)
def test_tasks_that_have_no_average_are_refused(names: list[str], words: str, index: None) -> None:
    assert list(load_tasks(["ai2_arc"], [])) == ["ai2_arc"]
    with pytest.raises(InputError, match=words):
        load_tasks(names, [])


@pytest.mark.slow
def test_items_that_cannot_be_loaded_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"task sciq cannot be loaded \(\w+: .*--task-file"):
        load_tasks(["sciq"], [])
