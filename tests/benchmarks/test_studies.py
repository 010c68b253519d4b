"""Each other study runs, in seconds and with figures of no use, and writes its record."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks import budgets, prefill_memory, python_docs, reasoning, report
from benchmarks.common.output import FOLDER
from benchmarks.mask_stability import stability_of, stability_table
from benchmarks.study.record import Answers, read_study
from benchmarks.throughput import layers_of, write_layers
from grasp_deploy.bench.memory import Sizes
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel
from tests.benchmarks.commands import EVERY_RECORD, refused, run

pytestmark = pytest.mark.slow  # each runs a study

NO_STUDIES = {"__init__", "python_docs", "real_models", "report"}
NO_STUDIES |= {"train_demo_model", "train_small_model"}
RESULTS = FOLDER / "results"
STUDIES = sorted({path.stem for path in FOLDER.glob("*.py")} - NO_STUDIES)


@pytest.mark.parametrize("random_weights", [True, False])
def test_gate_step(
    random_weights: bool, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(tiny), "--gradient-checkpointing"]
    if random_weights:
        arguments = ["--config", str(tiny / "config.json"), "--dtype", "bfloat16"]
    record = run("gate_step", tmp_path / "new" / "record.json", "--smoke", *arguments)
    for name in ("seconds_per_step", "lower_bound_seconds", "projection_seconds", "sort_seconds"):
        lower, upper = record[name]["quartiles"]
        assert 0 < lower <= record[name]["median"] <= upper
        assert len(record[name]["samples"]) == 3
    assert record["projection_units"] == 353_280
    assert record["ratio"] > 0 and record["tight_ratio"] > 0
    assert 0 < record["projection_share"] < 1 and record["peak_memory_bytes"] > 2**20
    assert record["extrapolated_schedule_seconds"] == 2048 * record["seconds_per_step"]["median"]
    assert "gate-learning step" in capsys.readouterr().out


def test_python_docs(tmp_path: Path) -> None:
    python_docs.main([str(tmp_path / "text.txt")])
    text = (tmp_path / "text.txt").read_text()
    assert len(text) > 300_000 and 'The "assert" statement' in text
    python_docs.main([str(tmp_path / "rows.jsonl")])
    rows = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(rows) > 50 and "\n\n".join(json.loads(row)["text"] for row in rows) == text


def test_export_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = run("export_memory", tmp_path / "record.json", "--smoke")
    settings = record["settings"]
    assert settings["input_shards"] == 10
    assert 0 < settings["output_bytes"] < settings["input_bytes"]
    assert 0 < record["peak_above_imports_bytes"] < 2**28
    assert record["peak_memory_bytes"] > record["imported_memory_bytes"] > 2**26
    for name in ("export", "copy_input", "copy_output", "copy_input_and_sync"):
        assert len(record[f"{name}_seconds"]["samples"]) == settings["repeats"] == 1
    assert record["times_copy_output"] > 0
    assert "peak memory above imports" in capsys.readouterr().out


def test_prefill_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The models of the paper's KV shares; measuring them is the bench's own to prove."""
    seen: list[BenchModel] = []

    def bench(models: Sequence[BenchModel], *_: object) -> None:
        seen.extend(models)

    monkeypatch.setattr(prefill_memory, "bench_memory", bench)
    monkeypatch.setattr(prefill_memory, "predict_prefill", lambda *_: Sizes(1, 1, 3, 1))
    prefill_memory.main(["--output", str(tmp_path / "record.json")])
    dense, *kept = (model.shape.kv_bytes_per_token() for model in seen)
    assert kept[0] / dense == pytest.approx(3348 / 4096, abs=0.02)
    assert kept[1] / dense == pytest.approx(2424 / 4096, abs=0.02)
    assert "13,990.8" in capsys.readouterr().out, "the paper's figure"


def test_kv_capacity_as_its_documentation_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", ["kv_capacity", "--smoke", "--output", str(path)])
    runpy.run_module("benchmarks.kv_capacity", run_name="__main__")
    record = json.loads(path.read_text())
    dense, pruned = (cell["predicted"] for cell in record["cells"])
    assert pruned["cached_tokens"] > dense["cached_tokens"] > 0
    assert "no vLLM was asked" in capsys.readouterr().out


def test_the_layers_of_a_record_are_those_that_a_study_kept(tmp_path: Path) -> None:
    study = read_study(RESULTS / "quality_methods-smollm2-135m-h200.json")
    speeds = RESULTS / "throughput-smollm2-135m-cpu.json"
    kept = {f"keep-{row.keep:g}": row.kept_per_layer for row in study.rows}
    heads = {
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "architectures": ["LlamaForCausalLM"],
    }
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    kind = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 49_152}
    (tmp_path / "config.json").write_text(json.dumps(kind | heads | sizes))
    names = []
    for name, layers in layers_of(speeds):
        folder = write_layers(tmp_path, name, layers, tmp_path)
        assert model_shape(read_config(folder)).layers == tuple(layers)
        pairs = [(layer.intermediate_size, layer.num_key_value_heads) for layer in layers]
        assert kept.get(name, pairs) == pairs
        names.append(name)
    assert names == ["keep-0.8", "keep-0.7", "keep-0.6", "keep-0.6-every-width", "keep-0.5"]


@pytest.mark.parametrize("name", ["throughput", "aligned_shapes"])
def test_speeds(
    name: str,
    tiny: Path,
    texts: list[Path],
    work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Models, quality and shapes; measuring speed is the bench's own to prove."""

    def bench(models: Sequence[BenchModel], *_: object) -> dict[str, Any]:
        header = dict.fromkeys(EVERY_RECORD, "")
        header["command"] = f"python -m benchmarks.{name} --output"
        return {**header, "models": [model.as_dict() for model in models]}

    study = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(study, "bench_throughput", bench)
    monkeypatch.setattr(study, "throughput_table", lambda record: "speed")
    options = ["--model", str(tiny), "--calibration", str(texts[0]), "--work", str(work)]
    if name == "aligned_shapes":
        options += ["--heldout", str(texts[1]), "--keep", "0.5"]
    record = run(name, tmp_path / "record.json", "--smoke", *options)
    names = [model["name"] for model in record["models"]]
    assert names == ["tiny", "tiny-0.5-multiple-1", "tiny-0.5-multiple-32"]
    layers = record["models"][2]["footprint"]["layers"]
    assert all(layer["intermediate_size"] % 32 == 0 for layer in layers)
    printed = capsys.readouterr().out
    assert "speed" in printed
    if name == "aligned_shapes":
        assert [row["model"] for row in record["quality"]] == names
        assert all(row["perplexity"] > 1 for row in record["quality"])
        assert "distinct shapes" in printed


def test_mask_stability(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    record = run("mask_stability", path, *inputs)
    assert [row["variant"] for row in record["rows"]] == [
        "projected straight-through",
        "Gumbel-TopK",
        "straight-through behind rounds",
    ]
    for row in record["rows"]:
        for shares in (row["ffn_survival"], row["kv_survival"]):
            assert shares and all(0 < share <= 1 for share in shares)
    table = stability_table(stability_of(record, path))
    assert table.row_count == 3 and str(table.title) in capsys.readouterr().out
    del record["rows"][1]["kv_survival"][1:]
    with pytest.raises(InputError, match=r"rows\[1\]\.kv_survival"):
        stability_of(record, path)


def test_budgets(inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A family beside runs of their own; a bound that leaves a model, and one that cannot."""
    path = tmp_path / "record.json"
    record = run("budgets", path, *inputs, "--keep", "0.9,0.7", "--max-loss", "0.1")
    assert [member["keep"] for member in record["members"]] == [0.9, 0.7]
    for member in record["members"]:
        assert member["within_larger"] and member["alone_seconds"] > 0
        assert member["perplexity"].keys() == member["alone"].keys() == {"held-out"}
    assert record["family_seconds"] > 0
    (refused,) = record["bounds"]
    assert "two held-out sequences at least" in refused["refused"] and refused["keep"] is None
    sizes = ["--sequences", "32", "--sequence-length", "32", "--evaluation-blocks", "4"]
    record = run("budgets", path, *inputs[1:], *sizes, "--keep", "", "--max-loss", "90")
    (left,) = record["bounds"]
    assert left["keep"] < 0.5 and left["excess"] + left["excess_error"] <= 90
    assert left["other_excess"].keys() == {"held-out"}
    printed = capsys.readouterr().out
    for table in budgets.tables_of(budgets.budgets_of(record, path)):
        assert str(table.title) in printed


def test_calibration(
    tiny: Path, texts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of two texts chooses a mask, and each calibrates the scales of both."""
    options = ["--smoke", "--model", str(tiny), "--evaluate", f"held-out={texts[1]}"]
    numbers = tmp_path / "numbers.txt"
    numbers.write_text("".join(f"{i} {i**2} {i**3}\n" for i in range(300)))
    options += ["--text", f"first={texts[0]}", "--text", f"second={numbers}"]
    path = tmp_path / "record.json"
    run("calibration", path, *options)
    rows = read_study(path).rows
    names = [f"mask: {m}, scales: {s}" for m in ("first", "second") for s in ("first", "second")]
    assert [row.variant for row in rows] == names
    kept = [row.kept_per_layer for row in rows]
    assert kept[0] == kept[1] and kept[2] == kept[3] and kept[0] != kept[2]
    losses = [row.heldout_loss for row in rows]
    on_own_text = {loss["heldout_pruned"] for loss in losses if isinstance(loss, dict)}
    assert len(on_own_text) == 4, "each mask on the held-out part of each text"
    capsys.readouterr()
    other = refused("calibration", capsys, *options[:-2], "--output", str(path))
    assert "was measured with texts" in other and str(texts[0]) in other


def test_reasoning(
    inputs: list[str],
    texts: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each calibration is asked the same problems; a second run measures nothing again."""
    path, work = tmp_path / "record.json", str(tmp_path)
    options = [*inputs, "--text", str(texts[0]), "--work", work]
    run("reasoning", path, *options)
    study = read_study(path)
    names = ["text", "own traces", "text and own traces", "text and own text, no prompts"]
    names.append("own text, no prompts")
    assert study.variants == names and list(study.dense_perplexity) == ["held-out", "traces"]
    for answers in (study.dense_answers, *(row.answers for row in study.rows)):
        assert isinstance(answers, Answers) and answers.accuracy == answers.right.count("1") / 4
        assert len(answers.right) == len(answers.lengths.split()) == 4
        assert answers.ended_share == 1 - answers.lengths.count("-") / 4
    assert len({tuple(map(tuple, row.kept_per_layer)) for row in study.rows}) > 1
    capsys.readouterr()
    monkeypatch.setattr(reasoning.ReasoningBench, "measure", None)
    run("reasoning", path, *options)
    report.main([str(path)])
    assert capsys.readouterr().out.count("Greedy answers") == 2


def test_pipeline(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--smoke", "--config", str(tiny / "config.json"))
    record = run("pipeline", tmp_path / "record.json", *options)
    stages = ["one round", "gates", "compensation", "scales"]
    assert [row["stage"] for row in record["rows"]] == [*stages, "rounds"]
    for row in record["rows"]:
        assert row["seconds"] > 0 and row["peak_memory_bytes"] > 2**20
        assert row["schedule_seconds"] > row["seconds"]
    assert "compensation" in capsys.readouterr().out


def test_peak_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = run("peak_memory", tmp_path / "record.json", "--smoke")
    peaks = {row["stage"]: row["peak_bytes"] for row in record["rows"]}
    plain, saved = (peaks[name] for name in peaks if name.startswith("a step of gates"))
    assert 2**20 < peaks["the dense model"] < saved < plain
    assert all(row["before_bytes"] <= row["peak_bytes"] for row in record["rows"])
    # Beside the allocator itself: it also sees the memory inside kernels.
    assert all(0.98 < ratio < 1.35 for ratio in record["allocator_ratio"].values())
    assert "24 GB" in capsys.readouterr().out


def test_ranks_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = run("ranks_memory", tmp_path / "record.json", "--smoke")
    lead, other = record["measured"]["peak_bytes"]
    libraries = min(record["libraries_bytes"])
    assert libraries > 2**28 and abs(lead - other) < libraries, "it is libraries alone"
    # One machine's libraries are not another's, and no tensor of the embedded model counts.
    assert 0.5 < record["predicted"]["machine_bytes"] / (lead + other) < 2
    assert record["measured"]["stage_seconds"]["scales"] > 0
    assert "process 1" in capsys.readouterr().out


def test_ranks_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = run("ranks_equal", tmp_path / "record.json", "--smoke")
    alone, divided = record["layouts"]
    assert (alone["processes"], divided["processes"]) == (1, 2)
    found = divided["against_first"]
    assert found["same_text"] and found["units_differing"] == 0
    assert found["scales"] < 1e-4 and found["heldout_loss"] < 1e-4
    assert found["weights"] < 1e-3, "in bfloat16, where a last bit is 0.004 of a number"
    assert "units_differing  0" in capsys.readouterr().out
    assert "write it as 2x1" in refused("ranks_equal", capsys, "--layouts", "2")


def test_time_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module in ("grasp_deploy.bench.times", "benchmarks.time_budget"):
        monkeypatch.setattr(f"{module}.engine_for", lambda shape: "transformers")
    for _ in range(3):  # noise on a tiny model may leave it no price
        with suppress(InputError):
            record = run(
                "time_budget", tmp_path / "record.json", "--smoke", "--speedup", "1.01,999"
            )
            break
    reached, beyond = record["rows"]
    assert reached["predicted"] >= 1.01 and reached["measured"] > 0
    assert "beyond reach" in beyond["refused"]
    assert "Times as fast as dense" in capsys.readouterr().out


@pytest.mark.all
@pytest.mark.vllm
@pytest.mark.slow
def test_startup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = run("startup", tmp_path / "record.json", "--smoke")
    (model,), (cell,) = record["models"], record["cells"]
    assert model["footprint"]["distinct_shapes"] > 1
    assert cell["cold_seconds"]["median"] > 1 and cell["warm_seconds"]["median"] > 1
    assert "heterogeneous" in capsys.readouterr().out


def test_a_place_that_no_record_may_take_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    for name in STUDIES:
        title = ["scales"] if name == "quality" else []
        with pytest.raises(InputError, match=f"--output {tmp_path} is a folder: name a file in it"):
            importlib.import_module(f"benchmarks.{name}").main([*title, "--output", str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mask_stability", ("--keep", "0.5,0.4"), "one budget and one seed"),
        ("calibration", ("--text", "a=x", "--text", "a=y"), "two --text have the same name"),
        ("gate_step", ("--threads", "0"), "--threads 0 is not above 0"),
        ("train_demo_model", ("--minutes", "nan"), "--minutes nan is not above 0"),
    ],
)
def test_options(
    name: str, options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(name, capsys, *options)


def test_committed_records_name_no_machine_and_no_absolute_path() -> None:
    for path in (FOLDER / "results").glob("*.json"):
        record = json.loads(path.read_text())
        assert record.keys() >= EVERY_RECORD
        assert not any(word.startswith("/") for word in record["command"].split()), path
        assert record["machine"].keys() <= {"processor", "cores", "threads", "gpu", "driver"}
