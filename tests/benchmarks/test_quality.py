"""Studies of quality: what they measure, what they continue, and what they refuse."""

import json
import math
import sys
from pathlib import Path

import pytest

from benchmarks import quality
from benchmarks.common.models import calibration_hashes
from benchmarks.study.record import Study, read_study
from benchmarks.study.rows import joined
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sha256
from grasp_deploy.files.record import write_record
from tests.benchmarks.commands import refused
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval, write_items
from tests.tiny import VARIANTS, save_tiny


def run(title: str, path: Path, inputs: list[str], *arguments: str) -> Study:
    quality.main([title, *inputs, "--output", str(path), *arguments])
    return read_study(path)


@pytest.fixture(scope="module")
def targets(inputs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a study of which one of three variants is measured."""
    path = tmp_path_factory.mktemp("targets") / "record.json"
    run("targets", path, inputs, "--variants", "both")
    return path


def test_a_study_is_continued_where_its_record_ends(
    targets: Path, inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(targets.read_bytes())
    (first,) = read_study(targets).rows
    study = run("targets", path, inputs, "--variants", "both;kv;ffn")
    # Text alone, under the name that records had before there was own text.
    text = inputs[inputs.index("--calibration") + 1]
    assert study.settings["calibration"] == text
    assert [row.variant for row in study.rows] == ["both", "kv", "ffn"], "as named"
    assert study.rows[0] == first, "seconds and all: it was not measured twice"
    assert study.command.startswith(f"{read_study(targets).command} && python -m benchmarks.")
    assert joined(study.command, study.command.split(" && ")[1]) == study.command, "named once"
    assert "Perplexity by budget" in capsys.readouterr().out
    for row in study.rows:
        assert row.kept_cost_share <= 0.6
        kept, dense = (sum(c for c, _ in x) for x in (row.kept_per_layer, study.dense_layers))
        assert kept / dense == pytest.approx(row.kept_ffn_share)
        ratio = row.perplexity["held-out"] / study.dense_perplexity["held-out"]
        assert row.excess_nats["held-out"] == pytest.approx(math.log(ratio))
        assert row.divergence["held-out"] > 0
        assert (row.excess_error["held-out"] or 0) > 0 and row.dtype == "float32"


def test_a_variant_with_own_text_reads_as_much_as_one_without() -> None:
    settings = {"model": "m", "calibration": ("c4", "self=0"), "sequences": 64}
    for variant in quality.STUDIES["own"]:
        assert variant.config(settings, 0.5, 0).sequences == 64
    assert settings["calibration"] == ("c4", "self=0")


def test_one_ranking_of_experts_differs_from_equal_numbers(
    inputs: list[str], tmp_path: Path
) -> None:
    save_tiny(**VARIANTS["qwen3-moe"], directory=tmp_path / "tiny")
    given = [*inputs, "--model", str(tmp_path / "tiny")]
    study = run("experts", tmp_path / "record.json", given)
    assert study.dense_layers == [(8, 2)] * 3, "experts, not channels"
    equal, ranked, _ = ([experts for experts, _ in row.kept_per_layer] for row in study.rows)
    assert sum(equal) == sum(ranked) == 14 and max(equal) - min(equal) == 1
    assert max(ranked) - min(ranked) > 1
    scored = [row.mean_kept_ffn_score is not None for row in study.rows]
    assert scored == [False, True, True], "ranks within a layer are no scores"


def test_rows_measured_otherwise_are_not_continued(
    targets: Path, inputs: list[str], tmp_path: Path
) -> None:
    path, versions = tmp_path / "record.json", read_study(targets).versions
    for key, value, words in (
        ("machine", {"processor": "Another"}, "measured with processor 'Another', not "),
        ("versions", {**versions, "torch": "1.0"}, "with torch '1.0', not .*: name another file"),
        ("settings", {"sequences": 9}, "was measured with model none, not "),
        ("dense_perplexity", {"held-out": 9.0}, "has the dense perplexities held-out 9, not "),
        ("rows", [], "has 'both' measured with rounds 9, not 5"),
    ):
        record = json.loads(targets.read_text())
        record["rows"][0]["options"]["rounds"] = 9
        write_record(path, record | ({key: value} if value else {}))
        with pytest.raises(InputError, match=words):
            run("targets", path, inputs)
    with pytest.raises(InputError, match=r"was measured with calibration .*\.txt', not .*, self':"):
        run("targets", targets, inputs, "--calibration", "self")


def test_what_another_study_has_measured_is_taken_from_it(
    targets: Path, inputs: list[str], tmp_path: Path
) -> None:
    """`--targets both` and the default are the same compression."""
    options = ("--known", str(targets), "--variants", "default")
    (known,) = run("stages", tmp_path / "stages.json", inputs, *options).rows
    (both,) = read_study(targets).rows
    both.variant = "default"
    assert known == both, "seconds and all"


def test_a_file_that_was_calibrated_on_is_another(inputs: list[str], tmp_path: Path) -> None:
    text, path = tmp_path / "text.txt", tmp_path / "record.json"
    text.write_bytes(Path(inputs[inputs.index("--calibration") + 1]).read_bytes())
    given = [*inputs, "--calibration", str(text)]
    run("targets", path, given, "--variants", "both")
    text.write_text(text.read_text().upper())
    with pytest.raises(InputError, match=r"was measured with calibration_hashes \['.*, not \['"):
        run("targets", path, given)
    prompts = {"calibration": ("c4", f"self:{text}@[:5]=0.5"), "calibration_split": None}
    assert calibration_hashes(prompts) == [sha256(text)]


def test_a_study_of_recovery(inputs: list[str], tmp_path: Path) -> None:
    options = ("--variants", "default, recovered")
    (row,) = run("recovery", tmp_path / "record.json", inputs, *options).rows
    assert row.options["recover"] == 4096 and row.seconds["recovery"] > 0


@needs_lm_eval
def test_a_study_with_tasks(
    inputs: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, files = tmp_path / "record.json", write_items(tmp_path)
    tasks = [f"--task-file={files[name]}" for name in ("query", "contexts")]
    given = ("--variants", "kv", *tasks, "--task-limit", "6")
    study = run("targets", path, inputs, *given)
    assert study.settings["task_limit"] == 6 and "lm_eval" in study.settings
    for row in (study.as_record()["dense_tasks"], study.as_record()["rows"][0]["tasks"]):
        assert row.keys() == {"query", "contexts"}
    assert "Accuracy on tasks" in capsys.readouterr().out
    # Of a run that ends before its first row, the dense model's accuracies remain.
    write_record(path, json.loads(path.read_text()) | {"rows": []})
    monkeypatch.setattr(quality, "accuracies", lambda *_: pytest.fail("measured twice"))
    assert run("targets", path, inputs, *given).dense_tasks == study.dense_tasks
    with pytest.raises(InputError, match="was measured with task_limit 6, not None"):
        run("targets", path, inputs, "--variants", "kv", *tasks)
    with files["query"].open("a") as items:
        items.write("\n")
    with pytest.raises(InputError, match="was measured with task_hashes"):
        run("targets", path, inputs, *given)


def test_options_are_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    no_model = ["--model", str(tmp_path / "no model")]  # so that loading it would fail
    for options, words in (
        (["--tasks", "piqa"], "lm-eval is not installed: run pip install"),
        (["--tasks", "piqa", "--task-limit", "0"], "--task-limit 0 leaves no item"),
        (["--task-limit", "5"], "--task-limit limits no task"),
        (["--variants", "both;nope"], "--variants nope is not in the study targets: choose from"),
        (["--seeds", "a"], "--seeds 'a': 'a' is not a whole number"),
    ):
        assert words in refused("quality", capsys, "targets", *no_model, *options)
