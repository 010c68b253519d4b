"""Options made from dataclasses: defaults, lists, sizes, `--set`, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from grasp_deploy.cli.config_options import takes_config
from grasp_deploy.cli.console import ErrorBoundary
from grasp_deploy.cli.options import takes_settings
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import Count, option
from grasp_deploy.files.sizes import parse_bytes
from tests.cli.command import Ended, assert_refused


@dataclass(frozen=True)
class Settings:
    text: str = option("Text.", flag="--data")
    batches: tuple[Count, ...] = option("Requests at a time.", (1, 2), flag="--batch")
    files: tuple[Path, ...] = option("Files.", (), flag="--file")
    memory_bytes: int = option("Memory.", 10, flag="--memory", parse=parse_bytes)
    limit: Count | None = option("Items.", None)
    rate: float = option("Rate.", 1.0)
    eager: bool = option("Compile nothing.", False)


def run(takes: Any, *arguments: str) -> tuple[Any, Ended]:
    """What a command gets from its arguments, and how it ended."""
    received: list[Any] = []
    app = typer.Typer(cls=ErrorBoundary)

    @app.callback()
    def group() -> None: ...

    def command(*, settings: Settings, as_json: bool = False) -> None:
        received.append(settings)

    def configured(*, config: CompressConfig) -> None:
        received.append(config)

    app.command("do")(takes(configured if takes is takes_config else command))
    result = CliRunner().invoke(app, ["do", *arguments])
    ended = Ended(result.exit_code, result.stdout, result.stderr)
    return (received[0] if received else None), ended


def test_values_have_the_types_of_their_fields() -> None:
    assert run(takes_settings(Settings), "--data", "null")[0] == Settings("null")
    given = ("--data", "c4", "--batch", "4,8", "--file", "a", "--file", "b", "--memory", "2KiB")
    settings, _ = run(takes_settings(Settings), *given, "--limit", "3", "--rate", "2", "--eager")
    assert settings == Settings("c4", (4, 8), (Path("a"), Path("b")), 2048, 3, 2.0, True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            ("--limit", "0", "--rate", "fast"),
            ("--limit 0 is not", "whole number from 1", "--rate 'fast' is not", "a number"),
        ),
        (("--batch", "1,x"), ("--batch '1,x'", "'x' is not a whole number")),
        (("--memory", "lots"), ("--memory 'lots' is not a size",)),
    ],
)
def test_values_that_are_refused(given: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_refused(run(takes_settings(Settings), "--data", "c4", *given)[1], *words)


def test_an_option_without_default_is_required() -> None:
    _, ended = run(takes_settings(Settings))
    assert_refused(ended, "Missing option '--data'", "do --help")


def test_set_gives_options_of_studies_by_their_types() -> None:
    names = ("targets=ffn", "own_temperature=2", "compensation=no", "rounds=1", "rounds=2")
    given = ("--keep", "0.5", *(f"--set={name}" for name in names))
    config, _ = run(takes_config, "m", *given)
    expected = replace(CompressConfig("m", keep=0.5), targets="ffn", own_temperature=2.0)
    assert config == replace(expected, compensation=False, rounds=2)
    _, ended = run(takes_config, "m", *given, "--set", "ridge=1e-3")
    assert_refused(ended, "--set ridge=0.001 has no effect")


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("rounds", ("has no value", "--set rounds=3")),
        ("round=4", ("unknown name", "did you mean rounds?", "compress --help-all")),
        ("keep=0.5", ("an option by itself: --keep",)),
        ("rounds=many", ("--set rounds='many' is not allowed: give a whole number from 1",)),
        ("rounds=0", ("--set rounds=0 is not allowed: give a whole number from 1",)),
        ("compensation=maybe", ("'maybe' is not allowed: give true or false",)),
    ],
)
def test_assignments_that_are_refused(assignment: str, words: tuple[str, ...]) -> None:
    assert_refused(run(takes_config, "m", "--keep", "0.5", "--set", assignment)[1], *words)


def test_the_command_line_wins_over_a_config_file(tmp_path: Path) -> None:
    stored = CompressConfig("m", keep=0.5, rounds=3, seed=7)
    (tmp_path / "config.json").write_text(stored.to_json())
    given = ("--config", str(tmp_path / "config.json"), "--weights", "9MiB", "--set", "rounds=4")
    config, _ = run(takes_config, *given)
    assert config == CompressConfig("m", weights="9MiB", rounds=4, seed=7)
