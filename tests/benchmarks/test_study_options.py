"""What the studies refuse, and how their scripts end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import calibration  # noqa: E402  the scripts lie in no package
import ending  # noqa: E402
import mask_stability  # noqa: E402
import quality  # noqa: E402

SCRIPTS = {"quality": quality, "calibration": calibration, "mask_stability": mask_stability}


def refused(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> str:
    """What a script says of options that it refuses with exit code 2."""
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *options])
    with pytest.raises(SystemExit, match="2"):
        ending.run(SCRIPTS[script].main)
    said = capsys.readouterr()
    assert said.out == ""
    [line] = [line for line in said.err.splitlines() if line]
    return line


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
