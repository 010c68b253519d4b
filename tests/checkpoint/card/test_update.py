"""Putting a record into a checkpoint: whatever the moment of a kill, the model is there."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.checkpoint.card.model_card import CARD_FILE, QUALITY_FILE, intact_plan, renew_card
from grasp_deploy.checkpoint.card.quality_verdict import quality_verdict
from grasp_deploy.checkpoint.read.loading import load_checked
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import MANIFEST_FILE, manifest_of, refuse_existing
from tests.cli.command import tree
from tests.evaluate.quality.rows import corpus

RENEWED = {QUALITY_FILE, CARD_FILE, "manifest.json"}


@pytest.fixture
def folder(demo_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_checkpoint, tmp_path / "pruned"))


def record(excess: float = 0.02) -> dict[str, Any]:
    corpora = [corpus("c4", excess)]
    return {"verdict": quality_verdict(corpora, []), "corpora": corpora, "tasks": []}


def renew(folder: Path, quality: dict[str, Any]) -> None:
    renew_card(folder, intact_plan(folder), quality)


def check_files(folder: Path) -> tuple[str, str]:
    first = next(verify(folder, without_base=True))
    return first.outcome, first.detail


def test_only_card_record_and_manifest_change(folder: Path) -> None:
    before = tree(folder)
    renew(folder, record())
    after = tree(folder)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == RENEWED and after.keys() - before.keys() == {QUALITY_FILE}
    assert json.loads((folder / QUALITY_FILE).read_text()) == record()
    card = (folder / CARD_FILE).read_text()
    assert "**Usable as a drop-in**: on c4" in card
    assert card.startswith("---\nlicense: apache-2.0\nlanguage: en\n"), "as the base model's is"
    assert manifest_of(folder).keys() == after.keys() - {"manifest.json"}
    assert check_files(folder)[0] == "proven"
    renew(folder, record(0.9))
    assert "**Broken**" in (folder / CARD_FILE).read_text()
    renew(folder, record())
    assert tree(folder) == after, "the same figures give the same bytes"
    assert [path.name for path in folder.parent.iterdir()] == ["pruned"], "no lock is left"
    refuse_existing(folder, overwrite=True)  # what a card adds may be replaced with the rest


def killed_before_replacement(folder: Path, number: int) -> None:
    """Renew the card in a fork that kills itself when it is about to replace so many-th a file."""
    plan = intact_plan(folder)
    child = os.fork()
    if child == 0:
        replace = Path.replace
        seen: list[Path] = []

        def counted(self: Path, target: Path) -> Path:
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            seen.append(self)
            return replace(self, target)

        Path.replace = counted  # type: ignore[assignment,method-assign]
        try:
            renew_card(folder, plan, record())
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("number", [0, 2])
def test_a_kill_between_two_files_leaves_the_model_and_is_mended(folder: Path, number: int) -> None:
    before = tree(folder)
    killed_before_replacement(folder, number)
    left = tree(folder)
    new = {name for name in left if not name.startswith(".") and left[name] != before.get(name)}
    assert new == set((MANIFEST_FILE, QUALITY_FILE, CARD_FILE)[:number])
    outcome, detail = check_files(folder)
    assert outcome == ("wrong" if number else "proven")
    assert not number or QUALITY_FILE in detail or CARD_FILE in detail
    refuse_existing(folder, overwrite=True)  # what it left is in nobody's way
    model = load_checked(folder, torch.device("cpu"), "float32", "sdpa")
    assert type(model).__name__ == "GraspLlamaForCausalLM"
    renew(folder, record())
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert all(check.ok for check in verify(folder))


def test_a_changed_file_is_found_and_not_blessed(folder: Path) -> None:
    stated = manifest_of(folder)["generation_config.json"]
    (folder / CARD_FILE).write_text("changed")  # will be replaced
    renew(folder, record())
    assert check_files(folder)[0] == "proven"
    plan = intact_plan(folder)
    (folder / "generation_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"generation_config.json is not the file that manifest"):
        intact_plan(folder)
    renew_card(folder, plan, record())
    assert manifest_of(folder)["generation_config.json"] == stated
    assert check_files(folder)[0] == "wrong"
