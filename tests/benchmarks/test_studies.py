"""Each other study runs, in seconds and with figures of no use, and writes its record."""

import importlib
import json
import shutil
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks import python_docs, recovery_curve
from benchmarks.common.output import FOLDER
from grasp_deploy.bench.memory import Sizes
from grasp_deploy.compression.compress import compress
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.files.tensors import read_tensors, write_tensors
from tests.benchmarks.commands import EVERY_RECORD, refused, run
from tests.cli.command import needs_vllm

pytestmark = pytest.mark.slow  # each runs a study

RESULTS = FOLDER / "results"
NO_STUDIES = {
    *("__init__", "frontier", "python_docs", "real_models", "recovery_curve", "report"),
    "train_demo_model",
}
STUDIES = sorted({path.stem for path in FOLDER.glob("*.py")} - NO_STUDIES)
# What a study is given beside --smoke, the names of what its record then holds, and what it prints.
SMOKE = {
    "adapters": ("", "rows", "Loss on held-out text"),
    "budgets": ("--keep 0.9,0.7 --max-loss 0.1", "members bounds", "Perplexity of a family"),
    "experts": (
        "--train TEXT --heldout HELDOUT --png PNG",
        "rows dense",
        "experts by layer",
    ),
    "kv_capacity": ("", "cells", "no vLLM was asked"),
    "llama_cpp": ("", "rows", "new tokens/s"),
    "pipeline": ("--config SHAPE", "rows projection_seconds", "compensation"),
    "recovery_step": ("", "step_seconds bound_seconds peak_memory_bytes", "times the bound"),
    "throughput": ("", "cells", "Throughput"),
    "time_budget": ("--speedup 1.01,999", "rows", "beyond reach"),
}
NO_TEXT = {
    "adapters",
    "experts",
    "kv_capacity",
    "llama_cpp",
    "pipeline",
    "recovery_step",
    "time_budget",
}  # they take a config.json, or the embedded one, or name their text themselves


@pytest.mark.parametrize("name", SMOKE)
def test_smoke(
    name: str,
    tiny: Path,
    texts: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module in ("grasp_deploy.bench.times", "benchmarks.time_budget"):
        monkeypatch.setattr(f"{module}.engine_for", lambda shape: "transformers")
    more, keys, printed = SMOKE[name]
    words = more.split()
    if name not in NO_TEXT:
        words += ["--model", "MODEL", "--calibration", "TEXT"]
        words += [] if name == "throughput" else ["--evaluate", "held-out=HELDOUT"]
    shape = shutil.copyfile(tiny / "config.json", tmp_path / "shape.json")
    paths = (tiny, *texts, tmp_path / "figure.png", shape)
    for place, path in zip(("MODEL", "TEXT", "HELDOUT", "PNG", "SHAPE"), paths, strict=True):
        words = [word.replace(place, str(path)) for word in words]
    tries = 3 if name == "time_budget" else 1  # noise on a tiny model may leave it no price
    for left in reversed(range(tries)):
        with suppress(InputError) if left else nullcontext():
            record = run(name, tmp_path / "record.json", "--smoke", *words)
            break
    assert all(record[key] for key in keys.split())
    assert printed in capsys.readouterr().out


@needs_vllm
@pytest.mark.vllm
@pytest.mark.all
def test_a_model_that_drafts_for_itself_is_always_right(tmp_path: Path) -> None:
    given = ("--smoke", "--dtype", "float32")
    engines = run("drafts", tmp_path / "record.json", *given)["engines"]
    assert list(engines) == ["dense", "draft", "1"]
    assert engines["1"]["accepted_by_place"] == [1.0] and engines["1"]["tokens_per_step"] == 2
    assert not any(row["gaps_where_parted"] for row in engines.values())


@needs_vllm
@pytest.mark.vllm
@pytest.mark.all
def test_two_engines_of_one_model_say_the_same(tmp_path: Path) -> None:
    first, second = run("served", tmp_path / "record.json", "--smoke")["rows"]
    assert first["tokens"] == 2 * 63 and 1 < first["perplexity"] < 1e4
    assert second == first and first["same_likeliest"] == 1


def test_stages_are_timed_by_what_they_read(tiny: Path, tmp_path: Path) -> None:
    given = ["--config", str(tiny / "config.json"), "--device", "cpu", "--sequence-length", "8"]
    rows = run("pipeline", tmp_path / "record.json", *given, "--sequences", "40")["rows"]
    assert [row["blocks"] for row in rows] == [16, 4 * 38, 20, 38, 16]
    assert rows[2]["schedule_seconds"] == pytest.approx(rows[2]["seconds"] / 20 * 256)


def test_recovery_curve(
    tiny: Path, texts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs of two lengths read the same own text; a record goes on where it ended."""
    record, own, made = (tmp_path / name for name in ("record.json", "own", "smaller"))
    given: dict[str, Any] = {"sequences": 8, "sequence_length": 32, "scale_epochs": 0}
    compress(CompressConfig(str(tiny), keep=0.5, calibration=(str(texts[0]),), **given), made)
    words = ["run", str(made), "--model", str(tiny), "--evaluate", f"held-out={texts[1]}"]
    words += ["--smoke", "--output", str(record), "--own-text", str(own), "--tokens-a-step", "64"]
    recovery_curve.main([*words, "--tokens", "0,512"])
    first = read_tensors(own, "")[0]["token_ids"]
    recovery_curve.main([*words, "--tokens", "0,512,768,256"])
    record_now = json.loads(record.read_text())
    rows, settings = record_now["rows"], record_now["settings"]
    assert [row["tokens"] for row in rows] == [512, 0, 768, 256]
    assert record_now["command"].count(" && ") == 1, "of both runs"
    record.write_text(json.dumps({**record_now, "machine": {}}))
    with pytest.raises(InputError, match="was measured with processor none, not"):
        recovery_curve.main([*words, "--tokens", "0"])
    record.write_text(json.dumps(record_now))
    assert (settings["evaluation_blocks"], settings["sequence_length"]) == ("2", "64"), "of --smoke"
    written = read_tensors(own, "")[0]["token_ids"]
    assert len(first) == 8 and len(written) == 12 and written[:8].equal(first)
    assert "held-out" in capsys.readouterr().out
    picture = tmp_path / "curve.png"
    recovery_curve.main(["draw", str(record), "--png", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    record.write_text(
        json.dumps({**record_now, "rows": [row for row in rows if not row["tokens"]]})
    )
    with pytest.raises(InputError, match="no row is of a recovery"):
        recovery_curve.main(["draw", str(record), "--png", str(picture)])
    record.write_text(json.dumps(record_now))
    other = RESULTS / "frontier-tasks-smollm2-135m-cpu.json"
    with pytest.raises(InputError, match="is no record of a recovery curve"):
        recovery_curve.main(["draw", str(other)])
    with pytest.raises(InputError, match=f"48 is not what a step from {made} reads: give 32"):
        recovery_curve.main([*words, "--tokens-a-step", "48", "--tokens", "512"])
    write_tensors(own, {"token_ids": written}, {**read_tensors(own, "")[1], "seed": 1})
    with pytest.raises(InputError, match="own does not state the same seed: give another file"):
        recovery_curve.main([*words, "--tokens", "512", "--rate", "1e-3"])
    own.write_bytes(own.read_bytes()[:-1])
    with pytest.raises(InputError, match="delete it, and it is written again"):
        recovery_curve.main([*words, "--tokens", "512", "--rate", "1e-3"])


def test_each_kind_of_text_of_several_curves_has_a_column_of_its_own() -> None:
    rows: list[dict[str, Any]] = [
        {"checkpoint": "a", "tokens": 0, "excess_nats": {"web": 0.25, "code": 0.75}},
        {"checkpoint": "b", "tokens": 0, "excess_nats": {"code": 0.125}},
    ]
    columns = recovery_curve.table_of(rows).columns
    cells = {str(column.header): list(column.cells) for column in columns}
    assert cells["web"] == ["+0.250", ""] and cells["code"] == ["+0.750", "+0.125"]
    assert cells["mean"] == ["+0.500", ""]


def test_another_setting_is_named_where_a_curve_does_not_go_on() -> None:
    path = RESULTS / "recovery_curve-smollm2-135m-at-0.8-h100.json"
    record = json.loads(path.read_text())
    had, dense, name = record["settings"], record["dense_perplexity"], "one-round-0.8"
    assert recovery_curve.rows_of(path, had, dense, {"another": "1"})
    for change, words in (
        ({"settings": {**had, "evaluate": "x"}}, "with evaluate none, not 'x'"),
        ({"dense": {**dense, "c4": 9.0}}, "has the dense perplexities .* not .*c4 9"),
        ({"plans": {name: "1"}}, f"has rows of another {name}: name another file"),
    ):
        now: dict[str, Any] = {"settings": had, "dense": dense, "plans": {}, **change}
        with pytest.raises(InputError, match=words):
            recovery_curve.rows_of(path, **now)


def test_text_of_the_standard_library(tmp_path: Path) -> None:
    python_docs.main([str(tmp_path / "text.txt")])
    text = (tmp_path / "text.txt").read_text()
    assert len(text) > 300_000 and 'The "assert" statement' in text
    python_docs.main([str(tmp_path / "rows.jsonl")])
    rows = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(rows) > 50 and "\n\n".join(json.loads(row)["text"] for row in rows) == text
    for kind in ("code", "held-out-code"):
        python_docs.main([str(tmp_path / f"{kind}.jsonl"), "--of", kind])
    used, held_out = (
        {json.loads(row)["text"] for row in (tmp_path / name).read_text().splitlines()}
        for name in ("code.jsonl", "held-out-code.jsonl")
    )
    assert len(used) > 300 and len(held_out) > 30 and not used & held_out
    assert all(len(source) > 1_000 for source in used | held_out)


def test_prefill_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The models of the paper's KV shares; measuring them is the bench's own to prove."""
    seen: list[BenchModel] = []

    def predict(model: BenchModel, *_: int) -> Sizes:
        seen.append(model)
        return Sizes(1, 1, 3, 1)

    monkeypatch.setattr("grasp_deploy.bench.prefill.predict_prefill", predict)
    record = run("prefill_memory", tmp_path / "record.json", "--device", "cpu")
    assert len(record["cells"]) == len(seen) == 16
    dense, *kept = (model.shape.kv_bytes_per_token() for model in seen[::4])
    assert kept[0] / dense == pytest.approx(3348 / 4096, abs=0.02)
    assert kept[1] / dense == pytest.approx(2424 / 4096, abs=0.02)
    assert "13,990.8" in capsys.readouterr().out, "the paper's figure"


def test_a_place_that_no_record_may_take_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    for name in STUDIES:
        title = ["scales"] if name == "quality" else []
        with pytest.raises(InputError, match=f"--output {tmp_path} is a folder: name a file in it"):
            importlib.import_module(f"benchmarks.{name}").main([*title, "--output", str(tmp_path)])


def test_nothing_is_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    for name, words, line in (
        ("budgets", "--seeds 1,2", "families are made with one seed"),
        ("throughput", "--config a --shapes b", "--shapes and --work exclude one another"),
        ("throughput", "--config a --work b", "--shapes and --work exclude one another"),
    ):
        assert line in refused(name, capsys, "--smoke", *words.split())
    for words, line in (
        ("--evaluation-blocks 0", "--evaluation-blocks 0 is not above 0"),
        ("--sequence-length 1", "--sequence-length 1 leaves no token to predict"),
    ):
        assert line in refused("quality", capsys, "methods", *words.split())


def test_committed_records_name_no_machine_and_no_absolute_path() -> None:
    for path in (FOLDER / "results").glob("*.json"):
        record = json.loads(path.read_text())
        assert record.keys() >= EVERY_RECORD
        assert not any(word.startswith("/") for word in record["command"].split()), path
        assert record["machine"].keys() <= {"processor", "cores", "threads", "gpu", "driver"}


def test_the_demo_models_script_replaces_nothing_but_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("# The demo model of somebody else")
    line = refused("train_demo_model", capsys, "--smoke", "--output", str(tmp_path))
    assert "exists and is not a demo model of this script" in line
