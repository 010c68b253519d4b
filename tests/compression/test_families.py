"""A family: masks within masks, budgets that hold, and runs that go on after a kill."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.checkpoint.plan import Plan, load_plan
from grasp_deploy.checkpoint.read import loading
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.compression import walks
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.result import Compressed
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.compression.walks import compress_family, compress_within
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from tests.compression.conftest import Killed, MakeConfig, kill_at
from tests.conftest import MakeOnce
from tests.kills import contents
from tests.tiny import save_tiny

KEEPS = (0.8, 0.6, 0.5)
NAMES = [f"keep-{keep}" for keep in KEEPS]


@pytest.fixture(scope="module")
def config(make_config: MakeConfig) -> CompressConfig:
    """Text is given, and written by the model."""
    text, _ = make_config(keep=0.5).calibration
    return make_config(keep=0.5, family=KEEPS, calibration=(text, "self"), rounds=2)


@pytest.fixture(scope="module")
def family(config: CompressConfig, make_once: MakeOnce) -> Path:
    """A whole family. Shared: copy it before changing anything."""

    def make(folder: Path) -> None:
        rows: list[dict[str, Any]] = []
        compress_family(config, RunOptions(folder, on_progress=rows.append))
        writes = {row["member"] for row in rows if row["stage"] == "own-text"}
        assert writes == {NAMES[0]}, "what the model writes is handed on"

    return make_once("family", make)


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


def test_the_largest_member_is_what_its_own_run_makes(
    config: CompressConfig, family: Path, make_config: MakeConfig, tmp_path: Path
) -> None:
    alone = make_config(keep=KEEPS[0], calibration=config.calibration, rounds=2)
    compress(alone, tmp_path / "alone")
    weights = [folder / "model.safetensors" for folder in (tmp_path / "alone", family / NAMES[0])]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_each_member_is_a_checkpoint_that_verifies(family: Path) -> None:
    assert sorted(path.name for path in family.iterdir()) == sorted(NAMES)
    for name in NAMES:
        assert all(check.ok for check in verify(family / name))


@pytest.mark.slow
def test_what_recovery_reads_is_written_once(config: CompressConfig, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    config = replace(config, keep=0.6, family=KEEPS[:2], recover=128 * 32, scale_epochs=0)
    compress_family(config, RunOptions(tmp_path / "out", on_progress=rows.append))
    assert {row["member"] for row in rows if row["stage"] == "recovery-text"} == {NAMES[0]}


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_members(
    config: CompressConfig, family: Path, tmp_path: Path
) -> None:
    output, kills = tmp_path / "out", 0
    first = output / NAMES[0] / "model.safetensors"
    made_at = None
    while True:
        options = RunOptions(output, bool(kills), on_progress=kill_at(60 + 10 * kills))
        try:
            compress_family(config, options)
            break
        except Killed:
            kills += 1
            if first.exists():
                made_at = made_at or first.stat().st_mtime_ns
    assert kills >= 3
    assert first.stat().st_mtime_ns == made_at, "a finished member is not made again"
    for name in NAMES:
        assert contents(output / name) == contents(family / name)
    assert sorted(path.name for path in output.iterdir()) == sorted(NAMES)


def test_resume_refuses_a_damaged_member(
    config: CompressConfig, family: Path, tmp_path: Path
) -> None:
    output = Path(shutil.copytree(family, tmp_path / "out"))
    weights = output / NAMES[1] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match=rf"{NAMES[1]} exists: name another folder, or replace"):
        compress_family(config, RunOptions(output, resume=True))
    compress_family(config, RunOptions(output, resume=True, overwrite=True))
    for name in NAMES:
        assert contents(output / name) == contents(family / name)


def test_overwrite_replaces_members_and_nothing_else(
    config: CompressConfig, make_config: MakeConfig, family: Path, tmp_path: Path
) -> None:
    output = Path(shutil.copytree(family, tmp_path / "out"))
    (output / "thesis.txt").write_text("three years of work")
    (output / NAMES[1] / "why.txt").write_text("measured on Monday")
    with pytest.raises(InputError, match=r"\(why.txt\), which --overwrite does not delete"):
        compress_family(config, RunOptions(output, overwrite=True))
    (output / NAMES[1] / "why.txt").unlink()
    quick: dict[str, Any] = {"rounds": 1, "scale_epochs": 0, "method": "progressive"}
    other = make_config(keep=0.7, family=(0.8, 0.7), **quick)
    compress_family(other, RunOptions(output, overwrite=True))
    assert load_plan(output / "keep-0.8/plan.grasp").provenance["config"]["family"] == [0.8, 0.7]
    assert {path.name for path in output.iterdir()} == {"thesis.txt", "keep-0.7", *NAMES}
    assert contents(output / NAMES[2]) == contents(family / NAMES[2])


@pytest.mark.parametrize(
    ("make", "others"),
    [
        (compress, [{"family": KEEPS}, {"max_loss": 0.1}]),
        (compress_family, [{"keep": 0.5}, {"max_loss": 0.1}]),
        (compress_within, [{"family": KEEPS}, {"keep": 0.5}, {"weights": "1MiB", "max_loss": 0.1}]),
    ],
)
def test_a_config_goes_to_its_own_function(
    make: Callable[..., Any], others: list[Any], make_config: MakeConfig, tmp_path: Path
) -> None:
    for other in others:
        with pytest.raises(InputError, match="use compress"):
            make(make_config(**other), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_resume_names_what_changed_since_and_the_right_cost_goes_on(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_prices.py").write_text("PRICE = 1.0\ndef f(u, _): return [PRICE] * u.size")
    monkeypatch.syspath_prepend(tmp_path)
    quick = {"rounds": 1, "scale_epochs": 0, "method": "progressive", "ffn_multiple": 1}
    config = make_config(family=(0.8, 0.6), cost="own_prices:f", **quick)
    made = compress_family(config, tmp_path / "out")
    import own_prices  # type: ignore[import-not-found]

    own_prices.PRICE = 2.0
    with pytest.raises(InputError, match=r"keep-0.8 was made with .*\(costs\)"):
        compress_family(config, RunOptions(tmp_path / "out", resume=True))
    assert not (tmp_path / "out.partial").exists()
    own_prices.PRICE = 1.0
    again = compress_family(config, RunOptions(tmp_path / "out", resume=True))
    assert [one.plan.path for one in again] == [one.plan.path for one in made]


def test_a_run_killed_before_a_member_began_goes_on(
    config: CompressConfig, family: Path, tmp_path: Path
) -> None:
    """At first a member's folder of work holds a lock alone, and at last again."""
    shutil.copytree(family / NAMES[0], tmp_path / "out" / NAMES[0])
    for name in NAMES[:2]:
        (tmp_path / "out" / f"{name}.partial").mkdir()
        (tmp_path / "out" / f"{name}.partial" / "lock").touch()
    compress_family(config, RunOptions(tmp_path / "out", resume=True))
    for one, other in zip(plans(tmp_path / "out"), plans(family), strict=True):
        assert torch.equal(one.mask, other.mask) and torch.equal(one.scales, other.scales)


Walk = Callable[[CompressConfig, RunOptions], list[Compressed] | Compressed]


@pytest.mark.parametrize(
    ("walk", "options", "end"),
    [
        (compress_family, {"keep": 0.6, "family": (0.8, 0.6)}, Killed()),
        (compress_family, {"keep": 0.6, "family": (0.8, 0.6)}, InputError("no room is left")),
        (compress_within, {"max_loss": 90.0, "bound_step": 0.2}, Killed()),
    ],
)
def test_a_run_that_ends_between_members_keeps_its_text_and_dtype(
    walk: Walk,
    options: dict[str, Any],
    end: BaseException,
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever has become of the file, and of a busy processor, since."""
    save_tiny("llama", tmp_path / "model", dtype=torch.bfloat16)
    text = Path(shutil.copy(make_config(keep=0.5).calibration[0], tmp_path / "text.txt"))
    quick = {"model": str(tmp_path / "model"), "rounds": 1, "scale_epochs": 0, "sequences": 64}
    own = ("self",) if isinstance(end, Killed) else ()
    config = make_config(calibration=(str(text), *own), **quick, **options)
    runs = count()

    def kill(*arguments: Any) -> Compressed:
        if next(runs) == 1:
            raise end
        return compress(*arguments)

    monkeypatch.setattr(walks, "compress", kill)
    monkeypatch.setattr(loading, "bfloat16_rate", lambda: 2.0)
    with pytest.raises(type(end)):
        walk(config, RunOptions(tmp_path / "out"))
    text.write_text("ABC" + text.read_text())
    monkeypatch.setattr(loading, "bfloat16_rate", lambda: 0.5)
    rows: list[dict[str, Any]] = []
    made = walk(config, RunOptions(tmp_path / "out", resume=True, on_progress=rows.append))
    assert not [row for row in rows if row["stage"] == "own-text"]
    if own and isinstance(made, list):  # what all share counts once
        written = [one.plan.provenance["seconds"]["own-text"] for one in made]
        assert written[0] > written[1] == 0
    every = made if isinstance(made, list) else [made]
    assert {one.plan.provenance["computed_in"] for one in every} == {"bfloat16"}
    assert len({one.plan.provenance["inputs"]["calibration tokens"] for one in every}) == 1
    assert not (tmp_path / "out.partial").exists()


def test_what_is_in_the_way_is_told_before_any_work(config: CompressConfig, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    (tmp_path / "out").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "other" / "keep-0.5.partial").mkdir(parents=True)
    (tmp_path / "other" / "keep-0.5.partial" / "mine").touch()
    for name in ("file", "link", "other"):
        options = RunOptions(tmp_path / name, overwrite=True, on_progress=rows.append)
        with pytest.raises(InputError, match=f"{name}.* (is no folder of its own|was not created)"):
            compress_family(config, options)
    assert not rows
