"""Help is instant and complete, and importing the package costs nothing."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

import grasp_deploy
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.rules import flag
from tests.cli import command

HEAVY = ("torch", "transformers", "numpy", "datasets", "safetensors", "vllm", "matplotlib", "peft")
PANELS = ("Model", "Budget", "Shapes", "Calibration", "Method", "Learning", "Running")
COMMANDS = ("compress", "export", "verify", "inspect", "serve", "up", "evaluate", "demo")


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import grasp_deploy", (*HEAVY, "rich", "typer")),
        ("from grasp_deploy.cli.app import app; app(['--help'], standalone_mode=False)", HEAVY),
        ("from grasp_deploy.cli.app import app; app(['--version'], standalone_mode=False)", HEAVY),
    ],
)
def test_nothing_heavy_is_loaded(program: str, absent: tuple[str, ...]) -> None:
    """What takes seconds to import is imported by the commands that need it."""
    loaded = command.run_python(f"import sys; {program}; print(*sys.modules)").split()
    assert not set(absent) & set(loaded)


def test_help_names_every_command() -> None:
    text = command.grasp_deploy("--help").stdout
    for name in COMMANDS:
        assert re.search(rf"^│ {name} ", text, re.MULTILINE), name


@pytest.mark.parametrize("name", ["compress", "up"])
def test_help_shows_every_option_with_its_default(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a wide terminal, so that no option is broken over lines.
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 400)
    monkeypatch.setenv("COLUMNS", "400")
    text = command.grasp_deploy(name, "--help").stdout
    for panel in PANELS:
        assert f"─ {panel} ─" in text, panel
    for field in fields(CompressConfig):
        if not field.metadata:
            continue
        row = next((r for r in text.splitlines() if re.search(f"{flag(field.name)} ", r)), None)
        assert row is not None, field.name
        if field.default is not None:
            switch = {True: "yes", False: "no"}  # 1 and 1.0 are True to a dict
            value = field.default
            default = switch[value] if isinstance(value, bool) else str(value).lower()
            assert f"(default: {default})" in row, row
    for option in ("--output", "--overwrite", "--shard-size", "--config"):
        assert option in text
    assert ("--resume" in text and "--json" in text) == (name == "compress")


def test_the_version_is_the_packages() -> None:
    assert command.grasp_deploy("--version").stdout == f"grasp-deploy {grasp_deploy.__version__}\n"
