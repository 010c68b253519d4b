"""Each benchmark runs, in seconds and with figures of no use, and writes the record it promises."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grasp_deploy.report.record_tables import record_tables

from grasp_deploy.demo.run import MODEL
from grasp_deploy.errors import InputError
from grasp_deploy.report.records import check_record
from tests.report.study_records import study_record

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import quality  # noqa: E402  the scripts lie in no package
from exports import demo_texts  # noqa: E402

EVERY_RECORD = {"schema_version", "benchmark", "command", "machine", "versions", "settings"}


def run(script: str, output: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    command = [sys.executable, f"benchmarks/{script}", "--smoke", "--output", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    record = json.loads(output.read_text())
    assert record.keys() >= EVERY_RECORD
    assert record["machine"].keys() >= {"processor", "cores"}
    return record, done.stdout


@pytest.mark.parametrize("arguments", [(), ("--gradient-checkpointing",), ("--config",)])
def test_gate_step(arguments: tuple[str, ...], tmp_path: Path) -> None:
    if arguments == ("--config",):
        config = tmp_path / "small.json"
        sizes = json.loads((ROOT / "benchmarks/configs/llama-2-7b.json").read_text())
        small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
        small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        config.write_text(json.dumps({**sizes, **small, "vocab_size": 256}))
        arguments = ("--config", str(config), "--dtype", "bfloat16")
    record, table = run("gate_step.py", tmp_path / "new" / "record.json", *arguments)
    spreads = {name for name in record if name.endswith("_seconds") and "extrapolated" not in name}
    spreads |= {"seconds_per_step"}
    assert spreads >= {"lower_bound_seconds", "projection_seconds", "sort_seconds"}
    for name in spreads:
        lower, upper = record[name]["quartiles"]
        assert 0 < lower <= record[name]["median"] <= upper
        assert len(record[name]["samples"]) == 3
    assert record["projection_units"] == 353_280
    assert record["ratio"] > 0 and record["tight_ratio"] > 0
    assert 0 < record["projection_share"] < 1
    assert record["peak_memory_bytes"] > 2**20
    step = record["seconds_per_step"]["median"]
    assert record["extrapolated_schedule_seconds"] == 2048 * step
    assert "gate-learning step" in table and "353,280" in table


def test_export_memory(tmp_path: Path) -> None:
    record, table = run("export_memory.py", tmp_path / "record.json")
    settings = record["settings"]
    assert settings["input_shards"] == 10
    assert 0 < settings["output_bytes"] < settings["input_bytes"]
    assert 0 < record["peak_above_imports_bytes"] < 2**28
    assert record["peak_memory_bytes"] > record["imported_memory_bytes"] > 2**26
    for name in ("export", "copy_input", "copy_output", "copy_input_and_sync"):
        assert len(record[f"{name}_seconds"]["samples"]) == settings["repeats"] == 2
    assert record["times_copy_output"] > 0
    assert "peak memory above imports" in table


def test_prefill_memory(tmp_path: Path) -> None:
    record, table = run("prefill_memory.py", tmp_path / "record.json")
    assert record["benchmark"] == "memory"
    assert [model["name"] for model in record["models"]] == ["model", "keep-0.5"]
    dense, pruned = (cell["measured"] for cell in record["cells"])
    assert pruned["weight_bytes"] < dense["weight_bytes"] < dense["peak_bytes"]
    assert "Memory of a prefill" in table


def test_kv_capacity(tmp_path: Path) -> None:
    record, table = run("kv_capacity.py", tmp_path / "record.json")
    assert record["benchmark"] == "kv"
    dense, pruned = (cell["predicted"] for cell in record["cells"])
    assert pruned["cached_tokens"] > dense["cached_tokens"] > 0
    assert "no vLLM was asked" in table


@pytest.mark.slow
def test_throughput(tmp_path: Path) -> None:
    record, _ = run("throughput.py", tmp_path / "record.json")
    assert record["benchmark"] == "throughput"
    names = [model["name"] for model in record["models"]]
    assert names == ["model", "model-0.5-multiple-1", "model-0.5-multiple-32"]
    assert len(record["cells"]) == 2 * len(names)
    assert all(len(cell["samples"]) == 3 for cell in record["cells"])
    widths = {
        layer["intermediate_size"] % 32 for layer in record["models"][2]["footprint"]["layers"]
    }
    assert widths == {0}


@pytest.mark.slow
def test_aligned_shapes(tmp_path: Path) -> None:
    record, table = run("aligned_shapes.py", tmp_path / "record.json")
    assert record["benchmark"] == "throughput"
    assert [row["model"] for row in record["quality"]] == [
        "model",
        "model-0.6-multiple-1",
        "model-0.6-multiple-64",
    ]
    dense, *others = (row["perplexity"] for row in record["quality"])
    assert all(1 < dense < other for other in others)
    assert "distinct shapes" in table


SCRIPTS = sorted(
    path.stem
    for path in (ROOT / "benchmarks").glob("*.py")
    if "run(main)" in path.read_text(encoding="utf-8") and path.stem != "train_demo_model"
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_place_that_no_record_may_take_is_refused_before_anything_is_measured(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = ["scales"] if script == "quality" else []
    monkeypatch.setattr(sys, "argv", [script, *study, "--smoke", "--output", str(tmp_path)])
    with pytest.raises(InputError, match=f"--output {tmp_path} is a folder: name a file in it"):
        importlib.import_module(script).main()


@pytest.mark.parametrize("study", quality.STUDIES)
def test_quality(
    study: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process: seven times importing torch would take longer than the studies."""
    path = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", ["quality.py", study, "--smoke", "--output", str(path)])
    quality.main()
    table, record = capsys.readouterr().out, json.loads(path.read_text())
    assert record.keys() >= EVERY_RECORD
    assert (record["benchmark"], record["study"]) == ("study", study)
    check_record(record, path)
    names = [variant.name for variant in quality.STUDIES[study][: quality.SMOKE_VARIANTS]]
    assert [row["variant"] for row in record["rows"]] == names
    for row in record["rows"]:
        assert row["kept_cost_share"] <= 0.6
        kept, dense = (
            sum(channels for channels, _ in layers)
            for layers in (row["kept_per_layer"], record["dense_layers"])
        )
        assert kept / dense == pytest.approx(row["kept_ffn_share"])
        assert_allocation(row, record)
        loss = row["excess_nats"]["held-out"]
        ratio = row["perplexity"]["held-out"] / record["dense_perplexity"]["held-out"]
        assert loss == pytest.approx(math.log(ratio)) and loss > -0.1
    assert "dense" in table and names[0].split()[0] in table


def assert_allocation(row: dict[str, Any], record: dict[str, Any]) -> None:
    """What the kept budget goes to, counted in parameters from config.json."""
    sizes = json.loads((MODEL / "config.json").read_text())
    heads, groups = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    channel = 3 * sizes["hidden_size"]  # a column of each of three matrices
    group = 2 * sizes["hidden_size"] * sizes["head_dim"] * (heads // groups + 1)  # Q, O; K, V
    factor = {"KV cost x 0.25": 0.25, "KV cost x 0.5": 0.5}.get(row["variant"], 1.0)
    ffn = channel * sum(pair[0] for pair in row["kept_per_layer"]) * (row["variant"] != "kv")
    kv = factor * group * sum(pair[1] for pair in row["kept_per_layer"]) * (row["variant"] != "ffn")
    assert row["ffn_share_of_kept_cost"] == pytest.approx(ffn / (ffn + kv))
    assert row["kv_share_of_kept_cost"] == pytest.approx(kv / (ffn + kv))
    scores = [row["mean_kept_ffn_score"], row["mean_kept_kv_score"]]
    if row["options"]["allocation"] == "global":
        assert all(map(math.isfinite, scores))
    else:
        assert scores == [None, None], "ranks, which say nothing of the method"


def test_a_study_goes_on_where_its_record_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    short = ["quality.py", "targets", "--smoke", "--output", str(path)]
    monkeypatch.setattr(sys, "argv", [*short, "--variants", "ffn"])
    quality.main()
    record = json.loads(path.read_text())
    first, settings = record["rows"], {**record["settings"], "sequences": 9}
    dense = {"dense_perplexity": {"held-out": 1.001 * record["dense_perplexity"]["held-out"]}}
    for change, words in (
        ({"settings": settings}, "was measured with sequences 9, and not 8"),
        (dense, "has the dense perplexities held-out "),
    ):
        path.write_text(json.dumps({**record, **change}))
        with pytest.raises(InputError, match=words):
            quality.main()
    path.write_text(json.dumps(record))
    monkeypatch.setattr(sys, "argv", short)
    quality.main()
    rows = json.loads(path.read_text())["rows"]
    assert rows[: len(first)] == first, "seconds and all: it was not measured twice"
    assert [row["variant"] for row in rows] == ["ffn", "both", "kv"]


def test_what_another_study_has_measured_is_taken_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--targets both` and a KV-cost factor of 1 are the same compression."""
    targets, costs = tmp_path / "targets.json", tmp_path / "costs.json"
    one = ["quality.py", "targets", "--smoke", "--output", str(targets), "--variants", "both;kv"]
    monkeypatch.setattr(sys, "argv", one)
    quality.main()
    other = ["quality.py", "kv-cost", "--smoke", "--output", str(costs), "--known", str(targets)]
    monkeypatch.setattr(sys, "argv", [*other, "--variants", "KV cost x 1;KV cost x 0.25"])
    quality.main()
    (both, _), rows = (json.loads(path.read_text())["rows"] for path in (targets, costs))
    assert rows[1] == {**both, "variant": "KV cost x 1"}, "seconds and all"
    assert rows[0]["variant"] == "KV cost x 0.25" and rows[0]["seconds"] != both["seconds"]
    assert rows[0]["kept_per_layer"] != both["kept_per_layer"]


def test_a_mask_without_its_scales_is_measured_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row taken from the variant with scales is that of a compression without any."""
    both, alone = tmp_path / "both.json", tmp_path / "alone.json"
    short = ["quality.py", "scales", "--smoke", "--output"]
    monkeypatch.setattr(sys, "argv", [*short, str(both)])
    quality.main()
    monkeypatch.setattr(sys, "argv", [*short, str(alone), "--variants", "paper without scales"])
    quality.main()
    (scaled, taken), (row,) = (json.loads(path.read_text())["rows"] for path in (both, alone))
    for name in ("variant", "options", "kept_per_layer", "mean_kept_kv_score"):
        assert taken[name] == row[name]
    for name in ("perplexity", "excess_nats"):
        assert taken[name]["held-out"] == pytest.approx(row[name]["held-out"], rel=1e-5)
    assert scaled["perplexity"]["held-out"] != pytest.approx(row["perplexity"]["held-out"], 1e-4)
    assert taken["seconds"] == {**scaled["seconds"], "scales": 0.0}, "it was not learnt again"


def test_rows_of_other_defaults_are_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    short = ["quality.py", "targets", "--smoke", "--output", str(path), "--variants", "kv"]
    monkeypatch.setattr(sys, "argv", short)
    quality.main()
    record = json.loads(path.read_text())
    record["rows"][0]["options"]["rounds"] = 9
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match="has 'kv' measured with rounds 9, and not 5"):
        quality.main()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("study", "scales", "is a record of the study scales, and not of targets"),
        ("benchmark", "gate_step", "is a record of gate_step, and not of study"),
        ("rows", [], "is no whole record of study: rows is no list of at least one"),
    ],
)
def test_a_record_of_something_else_is_not_gone_on_with(
    key: str, value: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    changed = json.dumps({**study_record(corpora=["held-out"]), "study": "targets", key: value})
    path.write_text(changed)
    monkeypatch.setattr(sys, "argv", ["quality.py", "targets", "--smoke", "--output", str(path)])
    with pytest.raises(InputError) as refused:
        quality.main()
    assert words in str(refused.value) and str(path) in str(refused.value)
    assert path.read_text() == changed, "it is left as it is"


def test_mask_stability(tmp_path: Path) -> None:
    record, table = run("mask_stability.py", tmp_path / "record.json")
    assert [row["variant"] for row in record["rows"]] == [
        "projected straight-through",
        "Gumbel-TopK",
        "straight-through behind rounds",
    ]
    for row in record["rows"]:
        for shares in (row["ffn_survival"], row["kv_survival"]):
            assert shares and all(0 < share <= 1 for share in shares)
    assert "survives" in table
    check_record(record, tmp_path / "record.json")
    (drawn,) = record_tables(record)
    assert drawn.title in table and drawn.row_count == 3
    del record["rows"][1]["kv_survival"][1:]
    with pytest.raises(InputError, match=r"rows\[1\].kv_survival has fewer than two"):
        check_record(record, tmp_path / "record.json")


def test_calibration(tmp_path: Path) -> None:
    """Each of two texts chooses a mask, and each calibrates the scales of both."""
    whole, _ = demo_texts(tmp_path)
    lines = whole.read_text().splitlines(keepends=True)
    texts = []
    for name, part in (("first", lines[: len(lines) // 2]), ("second", lines[len(lines) // 2 :])):
        (tmp_path / f"{name}.txt").write_text("".join(part))
        texts += ["--text", f"{name}={tmp_path / name}.txt"]
    path = tmp_path / "record.json"
    record, table = run("calibration.py", path, *texts)
    check_record(record, path)
    names = [
        f"mask: {mask}, scales: {scales}"
        for mask in ("first", "second")
        for scales in ("first", "second")
    ]
    assert [row["variant"] for row in record["rows"]] == names
    kept = [row["kept_per_layer"] for row in record["rows"]]
    assert kept[0] == kept[1] and kept[2] == kept[3] and kept[0] != kept[2]
    assert len({row["perplexity"]["held-out"] for row in record["rows"]}) == 4
    assert names[0] in table


def test_pipeline(tmp_path: Path) -> None:
    record, table = run("pipeline.py", tmp_path / "record.json")
    stages = ["criterion", "gates, text", "gates, distillation"]
    stages += ["compensation", "scales", "rounds"]
    assert [row["stage"] for row in record["rows"]] == stages
    for row in record["rows"]:
        assert row["seconds"] > 0 and row["peak_memory_bytes"] > 2**20
        assert row["schedule_seconds"] > row["seconds"]
    assert "compensation" in table


@pytest.mark.vllm
@pytest.mark.slow
def test_startup(tmp_path: Path) -> None:
    record, table = run("startup.py", tmp_path / "record.json")
    (model,), (cell,) = record["models"], record["cells"]
    assert model["footprint"]["distinct_shapes"] > 1
    assert cell["cold_seconds"]["median"] > 1 and cell["warm_seconds"]["median"] > 1
    assert "heterogeneous" in table


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.json")))
def test_committed_records_name_no_machine_and_no_absolute_path(path: Path) -> None:
    record = json.loads(path.read_text())
    assert record.keys() >= EVERY_RECORD
    assert not any(word.startswith("/") for word in record["command"].split())
    assert record["machine"].keys() <= {"processor", "cores", "threads", "gpu", "driver"}
