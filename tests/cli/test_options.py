"""Options made from dataclasses: defaults, lists, sizes, `--set`."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from grasp_deploy.cli.console import ErrorBoundary
from grasp_deploy.cli.options import config_of, takes_config, takes_settings
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import Count, option
from grasp_deploy.files.sizes import parse_bytes
from tests.cli.command import assert_refused, grasp_deploy


@dataclass(frozen=True)
class Settings:
    text: str = option("Text.", flag="--data")
    batches: tuple[Count, ...] = option("Requests at a time.", (1, 2), flag="--batch")
    files: tuple[Path, ...] = option("Files.", (), flag="--file")
    memory_bytes: int = option("Memory.", 10, flag="--memory", parse=parse_bytes)
    limit: Count | None = option("Items.", None)
    rate: float = option("Rate.", 1.0)
    eager: bool = option("Compile nothing.", False)


def run(takes: Any, *arguments: str) -> Any:
    """What a command gets from its arguments."""
    received: list[Any] = []
    app = typer.Typer(cls=ErrorBoundary)

    @app.callback()
    def group() -> None: ...

    def command(*, settings: Settings, as_json: bool = False) -> None:
        received.append(settings)

    def configured(*, given: dict[str, Any]) -> None:
        received.append(config_of(given))

    app.command("do")(takes(configured if takes is takes_config else command))
    CliRunner().invoke(app, ["do", *arguments])
    return received[0]


def test_values_have_the_types_of_their_fields() -> None:
    assert run(takes_settings(Settings), "--data", "null") == Settings("null")
    given = ("--data", "c4", "--batch", "4,8", "--file", "a", "--file", "b", "--memory", "2KiB")
    settings = run(takes_settings(Settings), *given, "--limit", "3", "--rate", "2", "--eager")
    assert settings == Settings("c4", (4, 8), (Path("a"), Path("b")), 2048, 3, 2.0, True)


@pytest.mark.parametrize("rate", [".5", "+0.5", " 0.5 ", "5e-1"])
def test_numbers_may_be_written_as_in_python(rate: str) -> None:
    settings = run(takes_settings(Settings), "--data", "c4", "--rate", rate, "--limit", "+3")
    assert (settings.rate, settings.limit) == (0.5, 3)
    assert run(takes_config, "m", "--keep", rate) == CompressConfig("m", keep=0.5)
    assert run(takes_config, "m", "--keep", f"1.,{rate}").family == (1.0, 0.5)
    assert run(takes_config, "m", "--max-loss", rate, "--set", "rounds=03").rounds == 3


def test_synthesize_without_a_budget_names_no_option_that_it_lacks(tiny_folder: Path) -> None:
    ended = grasp_deploy("synthesize", tiny_folder, "-o", "out")
    assert_refused(ended, "--keep")
    assert set(re.findall(r"--[a-z-]+", ended.stderr)) == {"--keep"}


def test_set_gives_options_of_studies_by_their_types() -> None:
    names = ("targets=ffn", "learning_rate=2", "compensation=no", "rounds=1", "rounds=2")
    given = ("--keep", "0.5", *(f"--set={name}" for name in names))
    config = run(takes_config, "m", *given)
    expected = replace(CompressConfig("m", keep=0.5), targets="ffn", learning_rate=2.0)
    assert config == replace(expected, compensation=False, rounds=2)


def test_the_command_line_wins_over_a_config_file(tmp_path: Path) -> None:
    stored = CompressConfig("m", keep=0.5, rounds=3, seed=7)
    (tmp_path / "config.json").write_text(stored.to_json())
    given = ("--config", str(tmp_path / "config.json"), "--weights", "9MiB", "--set", "rounds=4")
    config = run(takes_config, *given)
    assert config == CompressConfig("m", weights="9MiB", rounds=4, seed=7)


def test_another_model_takes_no_identity_from_a_config_file(tmp_path: Path) -> None:
    stored = CompressConfig("org/a", keep=0.5, base_model_id="org/a", revision="v1")
    (tmp_path / "config.json").write_text(stored.to_json())
    given = ("--config", str(tmp_path / "config.json"))
    for same in ("org/a/", f"{Path.cwd()}/org/a"):
        assert run(takes_config, *given, same) == replace(stored, model=same)
    assert run(takes_config, *given, "org/b") == CompressConfig("org/b", keep=0.5)


def test_a_budget_takes_its_own_options_along_and_leaves_a_bound(tmp_path: Path) -> None:
    load: dict[str, Any] = {"concurrency": 8, "context": 512, "cost": "memory"}
    stored = CompressConfig("m", gpu_memory="9GiB", max_loss=0.1, **load)
    (tmp_path / "config.json").write_text(stored.to_json())
    given = ("--config", str(tmp_path / "config.json"))
    assert run(takes_config, *given, "--keep", "0.5") == CompressConfig("m", keep=0.5, max_loss=0.1)
    more = run(takes_config, *given, "--gpu-memory", "8GiB")
    assert more == replace(stored, gpu_memory="8GiB")
    assert run(takes_config, *given, "--max-loss", "0.2") == CompressConfig("m", max_loss=0.2)
    bound = CompressConfig("m", max_loss=0.1, bound_step=0.2, cost="memory", cached_tokens=9)
    (tmp_path / "config.json").write_text(bound.to_json())
    counted = CompressConfig("m", keep=0.5, cost="memory", cached_tokens=9)
    assert run(takes_config, *given, "--keep", "0.5") == counted
    assert run(takes_config, *given, "--max-loss", "0.2") == replace(bound, max_loss=0.2)
    assert run(takes_config, *given, "--weights", "9MiB") == CompressConfig("m", weights="9MiB")
    (tmp_path / "config.json").write_text(counted.to_json())
    assert run(takes_config, *given, "--max-loss", "0.1") == replace(bound, bound_step=0.05)
