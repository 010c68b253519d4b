"""A family: masks within masks, budgets that hold, and runs that go on after a kill."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.checkpoint.plan import Plan, load_plan
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.family.bound import compress_within
from grasp_deploy.compression.family.record import FamilyRecord
from grasp_deploy.compression.family.run import compress_family
from grasp_deploy.config.compress_config import CompressConfig, read_config_file
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed
from tests.compression.family.conftest import Killed, MakeConfig, kill_at
from tests.conftest import MakeOnce
from tests.kills import contents

KEEPS = (0.8, 0.6, 0.5)
NAMES = [f"keep-{keep}" for keep in KEEPS]


@pytest.fixture(scope="module")
def config(make_config: MakeConfig) -> CompressConfig:
    return make_config(keep=0.5, family=KEEPS)


@pytest.fixture(scope="module")
def family(config: CompressConfig, make_once: MakeOnce) -> Path:
    """A whole family. Shared: copy it before changing anything."""
    return make_once("family", lambda folder: compress_family(config, folder))


def plans(family: Path) -> list[Plan]:
    return [load_plan(family / name / "plan.grasp") for name in NAMES]


def test_each_mask_lies_within_the_one_before_and_within_its_budget(family: Path) -> None:
    made = plans(family)
    for larger, smaller in pairwise(made):
        assert not (smaller.mask & ~larger.mask).any()
        assert int(smaller.mask.sum()) < int(larger.mask.sum())
    for plan, keep in zip(made, KEEPS, strict=True):
        budget = plan.provenance["budget"]
        assert 0.9 * keep < budget["kept_cost"] / budget["total_cost"] <= keep
        assert plan.provenance["losses"]["heldout_pruned"] > 0
    assert [plan.provenance["config"]["method"] for plan in made] == [
        *("progressive", "progressive", "grasp")
    ]


def test_each_member_is_a_checkpoint_that_verifies(family: Path) -> None:
    assert sorted(path.name for path in family.iterdir()) == ["family.json", *sorted(NAMES)]
    assert not family.with_name("family.partial").exists()
    for name in NAMES:
        assert all(check.ok for check in verify(family / name))
    cards = [(family / name / "README.md").read_text() for name in NAMES]
    assert all("one of a family of budgets (0.8, 0.6 and 0.5" in card for card in cards)


def test_the_record_has_all_members(family: Path) -> None:
    document = json.loads((family / "family.json").read_text())
    record = typed(document, FamilyRecord, "family.json", "")
    assert [member.keep for member in record.members] == list(KEEPS)
    sizes = [model.footprint.weight_bytes for model in record.models]
    assert sizes == sorted(sizes, reverse=True)
    for member, plan in zip(record.members, plans(family), strict=True):
        losses = plan.provenance["losses"]
        assert member.heldout_loss == losses["heldout_pruned"]
        assert member.excess == pytest.approx(
            losses["heldout_pruned"] - losses["heldout_dense"], abs=1e-5
        )


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_members(
    config: CompressConfig, family: Path, tmp_path: Path
) -> None:
    output, kills = tmp_path / "out", 0
    first = output / NAMES[0] / "model.safetensors"
    made_at = None
    while True:
        try:
            compress_family(
                config, output, resume=bool(kills), on_progress=kill_at(90 + 10 * kills)
            )
            break
        except Killed:
            kills += 1
            assert not (output / "family.json").exists()
            if first.exists():
                made_at = made_at or first.stat().st_mtime_ns
    assert kills >= 3
    assert first.stat().st_mtime_ns == made_at, "a finished member is not made again"
    for name in NAMES:
        assert contents(output / name) == contents(family / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_what_is_said_of_an_unfinished_family(make_config: MakeConfig, tmp_path: Path) -> None:
    quick: dict[str, Any] = {"method": "progressive", "rounds": 1, "scale_epochs": 0}
    output = tmp_path / "out"

    def kill_behind_the_first(_: dict[str, Any]) -> None:
        if (output / NAMES[0]).exists():
            raise Killed

    with pytest.raises(Killed):
        config = make_config(keep=0.5, family=KEEPS, **quick)
        compress_family(config, output, on_progress=kill_behind_the_first)
    changed = r"options \(--keep \[0.8, 0.6, 0.5\] -> \[0.8, 0.4\]\): resume"
    with pytest.raises(InputError, match=changed):
        compress_family(make_config(keep=0.4, family=(0.8, 0.4), **quick), output, resume=True)
    bound = make_config(max_loss=0.5, rounds=1, scale_epochs=0)
    ways: tuple[dict[str, Any], ...] = ({}, {"overwrite": True}, {"resume": True})
    for options in ways:
        with pytest.raises(InputError, match=r"an unfinished family lies in .*/out: go on"):
            compress(make_config(keep=0.5, **quick), output, **options)
        with pytest.raises(InputError, match=r"an unfinished family lies in .*/out: go on"):
            compress_within(bound, output, **options)
    assert (tmp_path / "out.partial/keep-0.8-compensation.safetensors").exists()


@pytest.mark.slow
def test_the_config_of_a_member_makes_it_again(family: Path, tmp_path: Path) -> None:
    stored = read_config_file(family / NAMES[1] / "compress_config.json")
    compress_family(CompressConfig.from_dict(stored, "it"), tmp_path / "again")
    assert contents(tmp_path / "again" / NAMES[1]) == contents(family / NAMES[1])


@pytest.mark.parametrize("keeps", [(0.8, 0.7), (0.8, 0.6), (0.9, 0.7)])
def test_resume_removes_no_member_of_other_budgets(
    make_config: MakeConfig, family: Path, tmp_path: Path, keeps: tuple[float, ...]
) -> None:
    output = tmp_path / "out"
    shutil.copytree(family, output)
    other = make_config(keep=keeps[-1], family=keeps)
    with pytest.raises(InputError, match=r"holds keep-0\.\d, which these options do not make"):
        compress_family(other, output, resume=True)
    (output / NAMES[1] / "why.txt").write_text("measured on Monday")
    other = make_config(keep=0.7, family=(0.9, 0.7))
    with pytest.raises(InputError, match=r"\(why.txt\), which --overwrite does not delete"):
        compress_family(other, output, overwrite=True)
    assert contents(output / NAMES[0]) == contents(family / NAMES[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_resume_leaves_a_checkpoint_beside_the_family(
    config: CompressConfig, family: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    shutil.copytree(family, output)
    shutil.copytree(family / NAMES[0], output / "keep-0.9")
    with pytest.raises(InputError, match=r"holds keep-0\.9, which these options do not make"):
        compress_family(config, output, resume=True)
    (output / "keep-0.9").rename(tmp_path / "elsewhere")
    (output / f".{NAMES[0]}.replaced").mkdir()  # by a run that was killed
    compress_family(config, output, resume=True)
    assert sorted(path.name for path in output.iterdir()) == ["family.json", *sorted(NAMES)]


def test_resume_names_a_damaged_member(
    config: CompressConfig, family: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    shutil.copytree(family, output)
    weights = output / NAMES[1] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match=rf"{NAMES[1]} is damaged, or was made with other options"):
        compress_family(config, output, resume=True)
    with pytest.raises(InputError, match=r"columns refitted for keep-0.8 .* without --resume"):
        compress_family(config, output, resume=True, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_resume_without_what_was_learnt_leaves_nothing(
    config: CompressConfig, family: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    shutil.copytree(family / NAMES[0], output / NAMES[0])
    with pytest.raises(InputError, match=r"columns refitted for keep-0.8 are needed"):
        compress_family(config, output, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert contents(output / NAMES[0]) == contents(family / NAMES[0])


@pytest.mark.slow
def test_overwrite_replaces_a_family_and_nothing_else(
    make_config: MakeConfig, family: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    shutil.copytree(family, output)
    other = make_config(keep=0.7, family=(0.9, 0.7), scale_epochs=0)
    with pytest.raises(InputError, match=r"exists: go on .* --resume, name another"):
        compress_family(other, output)
    appearing = (output / "notes", output / "keep-0.8-fp8", output / NAMES[0] / "why.txt")

    def add(_: dict[str, Any]) -> None:
        for path in appearing:
            path.mkdir(exist_ok=True)

    compress_family(other, output, overwrite=True, on_progress=add)
    assert all(path.exists() for path in appearing), "made while the run was at work"
    for path in (*appearing[:2], output / NAMES[0]):
        shutil.rmtree(path)
    assert sorted(path.name for path in output.iterdir()) == ["family.json", "keep-0.7", "keep-0.9"]
    made = load_plan(output / "keep-0.9/plan.grasp")
    assert torch.equal(made.scales, torch.ones(len(made.mask)))
    (output / "thesis.txt").write_text("three years of work")
    with pytest.raises(InputError, match=r"something else than a family .* \(thesis.txt\)"):
        compress_family(other, output, overwrite=True)
