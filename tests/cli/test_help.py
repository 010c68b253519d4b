"""Help is instant and complete, and importing the package costs nothing."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from dataclasses import fields

import pytest

import grasp_deploy
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.rules import flag
from tests.cli import command
from tests.retry_timing import undisturbed

PANELS = (
    "Model",
    "Budget",
    "Shapes",
    "Calibration",
    "Method",
    "Compensation",
    "Learning",
    "Running",
)
COMMANDS = ("compress", "export", "verify", "inspect", "serve", "up", "evaluate", "demo")


def cpu_seconds(*command_line: str) -> float:
    """User and system time of a command, its children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command_line, env=command.environment(), stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_takes_half_a_second_of_cpu_time(option: str) -> None:
    """On a machine that is slow, or slowed by others, twice what an empty application takes."""
    empty = "import typer; typer.run(lambda: None)"

    def check() -> None:
        least = cpu_seconds(sys.executable, "-c", empty, "--help")
        assert cpu_seconds(*command.command_line(option)) <= max(0.5, 2 * least)

    undisturbed(check)


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "numpy", "datasets", "safetensors", "vllm", "rich", "typer")
    code = f"import sys, grasp_deploy; sys.exit(str(sys.modules.keys() & {set(heavy)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=command.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip() == "set()"


def test_help_names_every_command() -> None:
    text = command.grasp_deploy("--help").stdout
    for name in COMMANDS:
        assert re.search(rf"^│ {name} ", text, re.MULTILINE), name


@pytest.mark.parametrize("name", ["compress", "up"])
def test_help_shows_every_option_with_its_default(name: str) -> None:
    # On a wide terminal, so that no option is broken over lines.
    text = command.run_process(name, "--help", COLUMNS="400", TERMINAL_WIDTH="400").stdout
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
