"""Putting a record into a checkpoint: card, record and manifest change, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.checkpoint.card.model_card import CARD_FILE, QUALITY_FILE, intact_plan, renew_card
from grasp_deploy.checkpoint.card.quality_verdict import quality_verdict
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import manifest_of, refuse_existing
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
