"""Models on the hub: every command asks for the revision that it is given, and plans name it."""

from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from tests.cli.command import compress, grasp_deploy


def test_a_plan_names_the_commit_and_is_exported_from_it(
    tiny_folder: Path, fetched: list[Any], work: Path
) -> None:
    assert compress("team/tiny", "--revision", "v1", "--set", "compensation=false").code == 0
    stated = load_plan(work / "out" / PLAN_FILE).provenance
    commit = tiny_folder.name  # snapshots are named by their commits
    assert (stated["model"], stated["revision"]) == ("team/tiny", commit)
    assert "base_model: team/tiny\n" in (work / "out" / "README.md").read_text()
    for number, options in enumerate(((), ("--revision", "v2"))):
        given = ("--model", "team/tiny", "-o", str(number), *options)
        assert grasp_deploy("export", f"out/{PLAN_FILE}", *given).code == 0
    assert fetched == [("team/tiny", revision) for revision in ("v1", commit, "v2")]


@pytest.mark.parametrize(
    "command",
    [
        "inspect team/tiny",
        "compress team/tiny --keep 0.6 --dry-run",
        "synthesize team/tiny --keep 0.6 -o out",
        "quantize team/tiny --scheme int8 -o out",
        "gguf team/tiny -o model.gguf",
    ],
)
def test_a_command_asks_for_its_revision(command: str, fetched: list[Any], work: Path) -> None:
    ended = grasp_deploy(*command.split(), "--revision", "v1")
    assert ended.code == 0 and fetched == [("team/tiny", "v1")], ended.stderr


def test_a_gguf_file_names_a_hub_model_by_its_id(fetched: list[Any], work: Path) -> None:
    gguf = pytest.importorskip("gguf")
    assert grasp_deploy("gguf", "team/tiny", "-o", "model.gguf").code == 0
    named = gguf.GGUFReader("model.gguf").fields["general.name"]
    assert named.contents() == "team/tiny"
