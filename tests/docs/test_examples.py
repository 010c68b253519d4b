"""Every example runs on the embedded model, without a network."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def text_of_the_session(demo_text: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing the embedded text takes seconds, and the session has written it already."""
    monkeypatch.setattr("grasp_deploy.demo.run.write_text", lambda _folder: demo_text)


def run(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: Path
) -> str:
    """Standard output of an example, run in this process."""
    monkeypatch.syspath_prepend(EXAMPLES)  # what `python examples/NAME` does
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_own_cost_prunes_the_dear_half_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run("own_cost.py", monkeypatch, capsys, tmp_path / "small")
    first, second = (int(line.split(": ")[1].split()[0]) for line in out.splitlines())
    assert 0 < second < first
    assert (tmp_path / "small" / "model.safetensors").is_file()


def test_generate_continues_the_prompt(
    demo_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run("generate.py", monkeypatch, capsys, demo_checkpoint)
    assert out.startswith("Return a new list containing")
    assert len(out.split()) > 5


def test_inspect_plan_lists_every_layer(
    demo_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run("inspect_plan.py", monkeypatch, capsys, demo_checkpoint).splitlines()
    kept, limit = (int(part.replace(",", "")) for part in lines[1][6:].split(" of at most "))
    assert 0 < kept <= limit
    assert [line.split()[0] for line in lines[4:]] == list("012345")


def test_export_again_gives_the_same_bytes(
    demo_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = run("export_again.py", monkeypatch, capsys, demo_checkpoint, tmp_path / "again")
    assert "byte for byte: True" in out
    dense, pruned = (float(line.split()[1]) for line in out.splitlines()[1:])
    assert 1 < dense < pruned


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{path.name}"' in text for path in EXAMPLES.glob("*.py"))
