"""Help is instant and complete, and importing the package costs nothing."""

import re

import pytest

import grasp_deploy
from grasp_deploy.cli.options import default_text
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import flag, option_fields
from tests.cli.command import grasp_deploy as run
from tests.cli.command import run_process

HEAVY = ("torch", "transformers", "numpy", "datasets", "safetensors", "vllm", "matplotlib", "peft")
MOST_OPTIONS = 25


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import grasp_deploy", (*HEAVY, "rich", "typer")),
        ("import grasp_deploy.checkpoint.footprint", ("torch", "transformers", "numpy")),
        ("from grasp_deploy.cli.app import app; app(['--help'], standalone_mode=False)", HEAVY),
    ],
)
def test_nothing_heavy_is_loaded(program: str, absent: tuple[str, ...]) -> None:
    """What takes seconds to import is imported by the commands that need it."""
    ended = run_process("-c", f"import sys; {program}; print(*sys.modules)")
    assert ended.code == 0
    assert not set(absent) & set(ended.stdout.split())


def rows_of(text: str) -> dict[str, str]:
    """Rows of help by their option."""
    return dict(re.findall(r"^│ [* ]* *(--[a-z-]+) (.*)│$", text, re.MULTILINE))


def study_rows(text: str) -> dict[str, str]:
    """Rows of the panel of names for `--set`, by their spelling."""
    panel = text.partition("Studies: --set")[2]
    rows = re.findall(r"^│ ([a-z-]+) +(.*)│$", panel, re.MULTILINE)
    return {f"--set {name}": row for name, row in rows}


@pytest.mark.parametrize("name", ["compress", "up"])
def test_help_is_short_and_help_all_is_complete(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a wide terminal, so that no option is broken over lines.
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 400)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr("grasp_deploy.cli.console.stdout.width", 400)
    short, complete = (run(name, option).stdout for option in ("--help", "--help-all"))
    assert len(rows_of(short)) <= MOST_OPTIONS
    shared = {"--output", "--overwrite", "--config", "--set", "--help-all", "--help"}
    own = set[str]()
    if name == "compress":
        own = {"--resume", "--json", "--dry-run"}
    expected = {"help": shared | own, "help-all": set(), "set": set()}
    for field in option_fields(CompressConfig).values():
        spelled = flag(CompressConfig, field.name)
        expected[field.metadata["shown"]].add(spelled)
        row = (rows_of(complete) | study_rows(complete)).get(spelled)
        assert row is not None, field.name
        assert default_text(field.default).replace("[dim]", "").removesuffix("[/]") in row
    assert rows_of(short).keys() == expected["help"]
    assert rows_of(complete).keys() == expected["help"] | expected["help-all"]
    assert study_rows(complete).keys() == expected["set"]


def test_the_version_is_the_packages() -> None:
    assert run("--version").stdout == f"grasp-deploy {grasp_deploy.__version__}\n"
