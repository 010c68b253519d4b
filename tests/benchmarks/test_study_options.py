"""What the studies refuse, and how their scripts end."""

from __future__ import annotations

import argparse
import errno
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.files.record import write_record
from tests.benchmarks.scripts import FOLDER, ROOT, refused
from tests.report.study_records import study_record

import calibration  # isort: skip
import ending  # isort: skip
import study_options  # isort: skip


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        ("quality", ("ranking", "--keep", "0.6,0.60"), "--keep 0.6,0.60 names one twice"),
        ("quality", ("ranking", "--seeds", "0,0"), "--seeds 0,0 names one twice"),
        ("quality", ("ranking", "--keep", "half"), "--keep 'half' is no list of numbers"),
        ("mask_stability", ("--keep", "0.5,0.4"), "one budget and one seed"),
        ("mask_stability", ("--keep", "half"), "--keep 'half' is no list of numbers"),
        (
            "quality",
            ("ranking", "--smoke", "--evaluate", "a=x.txt", "--evaluate", "a=y.txt"),
            "two --evaluate have the same name",
        ),
        (
            "calibration",
            ("--text", "a=x.txt", "--text", "a=y.txt"),
            "two --text have the same name",
        ),
        ("calibration", ("--text", "a=x.txt@"), "--text 'a=x.txt@' lacks a part: write NAME="),
        ("throughput", ("--batch", "a"), "--batch 'a' has 'a' where a positive whole number"),
        ("throughput", ("--batch", "0"), "--batch '0' has '0' where a positive whole number"),
        ("throughput", ("--repetitions", "0"), "--repetitions 0 is not above 0"),
        ("throughput", ("--new-tokens", "0"), "--new-tokens 0 is not above 0"),
        ("aligned_shapes", ("--batch", "1,"), "--batch '1,' has '' where a positive whole number"),
        ("aligned_shapes", ("--batch", "1,1"), "--batch '1,1' names a number twice"),
        ("aligned_shapes", ("--repetitions", "-1"), "--repetitions -1 is not above 0"),
        ("gate_step", ("--threads", "0"), "--threads 0 is not above 0"),
        ("gate_step", ("--config", __file__), "name a model's folder or its config.json"),
        ("export_memory", ("--repeats", "0"), "--repeats 0 is not above 0"),
        ("export_memory", ("--config", __file__), "name a model's folder or its config.json"),
        ("train_demo_model", ("--threads", "0"), "--threads 0 is not above 0"),
        ("train_demo_model", ("--minutes", "nan"), "--minutes nan is not above 0"),
    ],
)
def test_options(
    script: str,
    options: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert words in refused(script, monkeypatch, capsys, *options)


@pytest.mark.parametrize(
    ("script", "study", "now"),
    [
        ("quality", ("scales",), "scales"),
        ("calibration", ("--way", "paper"), "calibration text, paper"),
    ],
)
def test_a_record_of_another_study_is_refused_before_anything_is_measured(
    script: str,
    study: tuple[str, ...],
    now: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "record.json"
    write_record(output, {**study_record(), "study": "targets"})
    no_model = ("--model", str(tmp_path / "no model"))  # so that loading it would fail
    said = refused(script, monkeypatch, capsys, *study, *no_model, "--output", str(output))
    assert f"is a record of the study targets, and not of {now}" in said


def test_the_demo_text_is_made_only_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(work: Path) -> tuple[Path, Path]:
        made.append(work)
        return work / "calibration.jsonl", work / "heldout.jsonl"

    monkeypatch.setattr(study_options, "demo_texts", make)
    parser = argparse.ArgumentParser()
    study_options.add_options(parser)
    named = parser.parse_args(["--calibration", "a.txt", "--evaluate", "b=b.txt"])
    assert study_options.settings_of(named, tmp_path)["calibration"] == ["a.txt"]
    assert [corpus.label for corpus in study_options.corpora_of(named, tmp_path)] == ["b"]
    assert not made
    default = parser.parse_args([])
    assert study_options.settings_of(default, tmp_path)["calibration"][0].endswith("ion.jsonl")
    assert study_options.corpora_of(default, tmp_path)[0].what.endswith("heldout.jsonl")
    assert made == [tmp_path, tmp_path]


def test_files_whose_names_have_signs_of_the_option_in_them(tmp_path: Path) -> None:
    file = tmp_path / "a=b@c.txt"
    file.write_text("text")
    whole, named, part, last = study_options.parsed(
        "--evaluate", [str(file), f"x={file}", f"y={file}@train[:9]", "z=me@home.txt@test"]
    )
    assert (whole.label, whole.what, whole.split) == (file.name, str(file), None)
    assert (named.label, named.what, named.split) == ("x", str(file), None)
    assert (part.label, part.what, part.split) == ("y", str(file), "train[:9]")
    assert (last.label, last.what, last.split) == ("z", "me@home.txt", "test")


def test_a_full_disk_ends_in_a_line_that_names_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, record: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ending, "write_record", full)
    ending.write(None, {})
    with pytest.raises(InputError, match=f"cannot write {tmp_path / 'a.json'}: the disk is full"):
        ending.write(tmp_path / "a.json", {})


def test_records_are_written_at_one_place() -> None:
    writers = [path.name for path in FOLDER.glob("*.py") if "write_record" in path.read_text()]
    assert writers == ["ending.py"]


def test_a_record_of_another_text_is_not_gone_on_with(
    demo_text: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output, (one, other) = tmp_path / "record.json", demo_text
    same = ("--smoke", "--output", str(output), "--evaluate", f"heldout={other}")
    monkeypatch.setattr(sys, "argv", ["calibration.py", *same, "--calibration", str(one)])
    calibration.main()
    capsys.readouterr()
    before = output.read_bytes()
    assert json.loads(before)["settings"]["texts"] == [f"the text={one}"]
    said = refused("calibration", monkeypatch, capsys, *same, "--calibration", str(other))
    assert "was measured with texts" in said and str(one) in said
    assert output.read_bytes() == before


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_script_that_is_stopped(sent: signal.Signals, code: int) -> None:
    """In a process of its own: signals are of the whole process."""
    program = (
        "import os, signal, sys, time; sys.path.insert(0, 'benchmarks'); import ending\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job's may be ignored
        f"def main(): os.kill(os.getpid(), {int(sent)}); time.sleep(60)\n"
        "ending.run(main)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
