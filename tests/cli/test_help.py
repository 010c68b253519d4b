"""Help is instant and complete, and importing the package costs nothing."""

from __future__ import annotations

import re
import resource
import subprocess
import sys

import pytest

import grasp_deploy
from grasp_deploy.cli.settings_options import default_text
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import flag, option_fields
from tests.cli import command
from tests.retry_timing import undisturbed

MOST_OPTIONS = 25
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


def wide_help(*arguments: str) -> str:
    """Help on a wide terminal, so that no option is broken over lines."""
    return command.run_process(*arguments, COLUMNS="400", TERMINAL_WIDTH="400").stdout


def rows_of(text: str) -> dict[str, str]:
    """Rows of help by their option."""
    return dict(re.findall(r"^│ [* ]* *(--[a-z-]+) (.*)│$", text, re.MULTILINE))


def study_rows(text: str) -> dict[str, str]:
    """Rows of the panel of names for `--set`, by their spelling."""
    panel = text.partition("Studies: --set")[2]
    rows = re.findall(r"^│ ([a-z-]+) +(.*)│$", panel, re.MULTILINE)
    return {f"--set {name}": row for name, row in rows}


@pytest.mark.parametrize("name", ["compress", "up"])
def test_help_is_short_and_help_all_is_complete(name: str) -> None:
    short, complete = wide_help(name, "--help"), wide_help(name, "--help-all")
    assert len(rows_of(short)) <= MOST_OPTIONS
    shared = {"--output", "--overwrite", "--config", "--set", "--help-all", "--help"}
    own = {"--resume", "--json"} if name == "compress" else set()
    by_visibility: dict[str, set[str]] = {"help": shared | own, "help-all": {"--shard-size"}}
    for field in option_fields(CompressConfig).values():
        shown, spelled = field.metadata["shown"], flag(CompressConfig, field.name)
        by_visibility.setdefault(shown, set()).add(spelled)
        row = rows_of(complete).get(spelled) or study_rows(complete).get(spelled)
        assert row is not None, field.name
        assert default_text(field.default).replace("[dim]", "").removesuffix("[/]") in row
    assert rows_of(short).keys() == by_visibility["help"]
    assert rows_of(complete).keys() == by_visibility["help"] | by_visibility["help-all"]
    assert study_rows(complete).keys() == by_visibility["set"]


def test_the_version_is_the_packages() -> None:
    assert command.grasp_deploy("--version").stdout == f"grasp-deploy {grasp_deploy.__version__}\n"
