"""Records with a damaged leaf are refused before anything is drawn; true ones are not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from tests.report.study_records import study_record, with_allocation, with_tasks

from grasp_deploy.bench.throughput.table import serve_table
from grasp_deploy.errors import InputError
from grasp_deploy.files.record import read_record
from grasp_deploy.report.records import check_record
from tests.evaluate.tasks.test_table import task_record
from tests.report.records import Record, kv_record, model, record, serve_record, throughput_record

MODELS = [model("dense"), model("pruned", 0.6)]
SEEN = sorted((Path(__file__).parents[2] / "benchmarks/results").glob("*.json"))


def startup_record() -> Record:
    seconds = {"median": 2.0, "quartiles": [1.0, 3.0], "samples": [1.0, 2.0, 3.0]}
    cells = [
        {"model": one["name"], "cold_seconds": dict(seconds), "warm_seconds": dict(seconds)}
        for one in MODELS
    ]
    return record("startup", MODELS, cells=cells)


def full_study_record() -> Record:
    """A study with all that a record of one may hold."""
    made = with_tasks(study_record(), {"piqa": "acc_norm", "sciq": "acc"}, [0.7, 0.5, 0.6])
    for row in made["rows"][:2]:
        with_allocation(row, 0.6, (0.5, -0.5))
    return made


MADE = {
    "throughput": lambda: throughput_record(MODELS, batches=(1, 8)),
    "kv": lambda: kv_record(MODELS),
    "serve": lambda: serve_record(MODELS),
    "tasks": task_record,
    "startup": startup_record,
    "study": study_record,
    "full study": full_study_record,
}
SAMPLE, ROW = ("cells", 0, "samples", 0), ("rows", 1)
ABSENT = object()


def changed(kind: str, place: tuple[str | int, ...], value: Any) -> Record:
    """A record with another value in one place, or without what was there."""
    made = copy.deepcopy(MADE[kind]())
    inner: Any = made
    for step in place[:-1]:
        inner = inner[step]
    if value is ABSENT:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return made


@pytest.mark.parametrize("path", SEEN, ids=lambda path: path.stem)
def test_records_of_real_runs_are_whole(path: Path) -> None:
    check_record(read_record(path), path)


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        ("throughput", ("cells", 0, "samples"), []),  # a batch that did not fit
        ("throughput", (*SAMPLE, "tpot_seconds"), None),  # of one new token
        ("throughput", (*SAMPLE, "joules"), ABSENT),
        ("kv", ("cells", 0, "measured"), None),
        ("kv", ("settings", "memory_bytes"), ABSENT),
        ("serve", ("cells", 0, "load", "max_concurrency"), None),
        ("serve", (*SAMPLE, "itl_seconds"), ABSENT),
        ("tasks", ("cells", 0, "num_fewshot"), None),
        ("tasks", ("cells", 0, "standard_error"), None),
        ("study", ("dense_layers",), ABSENT),
        ("study", ("rows", 0, "excess_nats", "c4"), -0.01),  # better than the dense model
        ("study", ("rows", 0, "keep"), 1),
        ("study", ("rows", 0, "heldout_loss"), ABSENT),  # nothing is drawn of it
        ("full study", ("rows", 0, "tasks", "piqa", "standard_error"), None),  # of one item
        ("full study", ("rows", 0, "mean_kept_kv_score"), None),  # an infinite one
    ],
)
def test_what_a_true_record_may_hold(kind: str, place: tuple[str | int, ...], value: Any) -> None:
    check_record(changed(kind, place, value), Path("one.json"))


@pytest.mark.parametrize(
    ("kind", "place", "value", "words"),
    [
        ("throughput", (*SAMPLE, "seconds"), 10**400, "seconds is no number"),
        ("throughput", (*SAMPLE, "tpot_seconds"), "fast", "tpot_seconds is no number"),
        ("throughput", (*SAMPLE, "joules"), "many", "joules is no number"),
        ("startup", ("cells", 0, "cold_seconds", "samples"), [], "no list of at least one"),
        ("startup", ("cells", 1, "model"), "dense", "are of one model"),
        ("kv", ("cells", 0, "measured"), {}, "measured has no cached_tokens"),
        ("kv", ("cells", 0, "measured"), "much", "measured is no object"),
        ("kv", ("cells", 0, "measured", "sequences"), 1.5, "sequences is no number"),
        ("kv", ("cells", 0, "kv_bytes_per_token"), ABSENT, "no kv_bytes_per_token"),
        ("kv", ("cells", 0, "layer_kv_bytes_per_token"), [], "no list of at least one"),
        ("kv", ("settings", "memory_bytes"), "1GiB", "settings.memory_bytes is no number"),
        ("serve", (*SAMPLE, "ttft_seconds"), {}, "ttft_seconds has no p50"),
        ("serve", (*SAMPLE, "e2e_seconds", "p99"), None, "p99 is no number"),
        ("serve", (*SAMPLE, "itl_seconds"), [], "itl_seconds is no object"),
        ("serve", (*SAMPLE, "output_tokens_per_second"), 0, "no tokens per second although"),
        ("serve", ("cells", 0, "load", "max_concurrency"), "8", "max_concurrency is no number"),
        ("serve", ("cells", 0, "samples"), [], r"cells\[0\].samples is empty"),
        ("serve", ("settings", "prompt_tokens"), 64, "settings has no requests"),
        ("serve", ("settings", "new_tokens"), "16", "settings.new_tokens is no number"),
        ("tasks", ("cells", 0, "accuracy"), 1.5, "accuracy of 1.5"),
        ("tasks", ("cells", 0, "standard_error"), float("nan"), "standard_error is no number"),
        ("tasks", ("cells", 0, "items", 1, "acc_norm"), "1", "acc_norm is no number"),
        ("tasks", ("cells", 0, "items", 1, "item"), 0, "an item twice"),
        ("tasks", ("cells", 2, "items", 3, "item"), 9, "their items differ"),
        ("tasks", ("cells", 2, "items", 3), ABSENT, "their items differ"),
        ("tasks", ("cells", 2, "prompts_sha256"), "1", "their prompts differ"),
        ("tasks", ("cells", 3, "metric"), "acc, strict", "their metrics differ"),
        ("study", ("study",), ABSENT, "it has no study"),
        ("study", ("dense_perplexity",), {}, "dense_perplexity is empty"),
        ("study", ("dense_perplexity",), 8.0, "dense_perplexity is no object"),
        ("study", ("dense_perplexity", "c4"), 0, "dense_perplexity.c4 is 0, which cannot be"),
        ("study", ("dense_perplexity", "ptb"), 9.0, r"rows\[0\] is not of the corpora c4, ptb"),
        ("study", ("rows",), [], "rows is no list of at least one"),
        ("study", (*ROW, "variant"), None, "variant is no text"),
        ("study", (*ROW, "keep"), 0, "keep is 0, which cannot be"),
        ("study", (*ROW, "keep"), 1.5, r"rows\[1\] keeps 1.5, and 1 is all"),
        ("study", (*ROW, "seed"), 0, r"rows\[1\] is there twice"),
        ("study", (*ROW, "seed"), "0", "seed is no number"),
        ("study", (*ROW, "perplexity"), {"ptb": 9.0}, r"rows\[1\] is not of the corpora c4"),
        ("study", (*ROW, "perplexity", "c4"), float("inf"), "perplexity.c4 is no number"),
        ("study", (*ROW, "excess_nats"), {}, "excess_nats is empty"),
        ("study", (*ROW, "excess_nats", "c4"), None, "excess_nats.c4 is no number"),
        ("study", (*ROW, "kept_cost_share"), ABSENT, "no kept_cost_share"),
        ("study", (*ROW, "kept_ffn_share"), "half", "kept_ffn_share is no number"),
        ("study", (*ROW, "kept_kv_share"), -0.5, "kept_kv_share is -0.5, which cannot be"),
        ("study", (*ROW, "kept_per_layer"), [[4, 2]], "kept_per_layer that is no list of 2 pairs"),
        ("study", (*ROW, "kept_per_layer", 0), [4], "kept_per_layer that is no list of 2 pairs"),
        ("study", (*ROW, "kept_per_layer", 0, 1), 0.5, "is no number"),
        ("study", (*ROW, "kept_per_layer", 0), [11, 2], "keeps more of a layer than it has"),
        ("study", (*ROW, "seconds"), {}, "seconds is empty"),
        ("study", (*ROW, "seconds", "start"), None, "seconds.start is no number"),
        ("study", ("dense_layers",), [[10, 4]], "kept_per_layer that is no list of 1 pairs"),
        ("study", ("dense_layers", 1), [20], "dense_layers are no pairs"),
        ("study", ("dense_layers", 1, 0), 0, "which cannot be"),
        ("full study", ("dense_tasks",), ABSENT, "it has no dense_tasks"),
        ("full study", ("dense_tasks",), {}, "dense_tasks is empty"),
        ("full study", ("dense_task_average",), ABSENT, "it has no dense_task_average"),
        ("full study", ("dense_tasks", "piqa", "accuracy"), 1.5, "it has an accuracy of 1.5"),
        ("full study", ("dense_tasks", "piqa", "metric"), "acc", "not run the dense model's tasks"),
        (
            "full study",
            ("dense_tasks", "piqa", "standard_error"),
            "0",
            "standard_error is no number",
        ),
        ("full study", (*ROW, "tasks"), ABSENT, r"rows\[1\] has no tasks"),
        ("full study", (*ROW, "tasks"), 0.5, r"rows\[1\].tasks is no object"),
        ("full study", (*ROW, "tasks", "piqa"), ABSENT, r"rows\[1\] has not run the dense model's"),
        ("full study", (*ROW, "tasks", "piqa", "accuracy"), 0.9, "is not that of its tasks"),
        ("full study", (*ROW, "task_average"), ABSENT, r"rows\[1\] has no task_average"),
        ("full study", (*ROW, "task_average", "accuracy"), None, "task_average.accuracy is no"),
        ("full study", (*ROW, "kv_share_of_kept_cost"), ABSENT, "has no kv_share_of_kept_cost"),
        ("full study", (*ROW, "kv_share_of_kept_cost"), 0.5, "make up 1.1 of what it keeps"),
        ("full study", (*ROW, "kv_share_of_kept_cost"), -0.5, "is -0.5, which cannot be"),
        ("full study", (*ROW, "mean_kept_ffn_score"), "high", "mean_kept_ffn_score is no number"),
    ],
)
def test_what_is_refused(kind: str, place: tuple[str | int, ...], value: Any, words: str) -> None:
    check_record(MADE[kind](), Path("one.json"))
    with pytest.raises(InputError, match=words):
        check_record(changed(kind, place, value), Path("one.json"))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema_version": ' + "1" * 5_000 + "}"])
def test_json_that_python_cannot_hold(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(InputError, match=r"odd.json cannot be read .*: name a record"):
        read_record(tmp_path / "odd.json")


def test_a_server_that_answered_nothing_is_still_drawn() -> None:
    made = serve_record(MODELS, failed={"dense": 500})
    for cell in made["cells"][:3]:
        for sample in cell["samples"]:
            sample["output_tokens_per_second"] = 0.0
    check_record(made, Path("one.json"))
    assert serve_table(made).row_count == 9
