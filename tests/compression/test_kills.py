"""Killed at any file operation: learning goes on to the same bits, exports are all or nothing."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from grasp_deploy.checkpoint.plan import load_plan
from grasp_deploy.checkpoint.verify import verify
from tests.crash_runner import forker
from tests.kills import Runs, difference

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with forker() as fork:
        yield Runs(tmp_path_factory.mktemp("runs"), fork)


LONG = [("compress", 23), ("family", 15), ("bound", 15)]
CHAINS = [
    ("compress", 5),
    ("heal", 3),
    *(pytest.param(*chain, marks=pytest.mark.all) for chain in LONG),
]


@pytest.mark.parametrize(("name", "chain"), CHAINS)
def test_a_killed_command_goes_on_to_the_same_bits(
    runs: Runs, tmp_path: Path, name: str, chain: int
) -> None:
    """A chain of runs, each killed a share of the whole further on, and resumed by the next."""
    if name == "heal":
        runs.whole("cut")
    whole, kills = runs.whole(name), 0
    if name == "compress":
        assert load_plan(whole / "plan.grasp").fitted, "columns were solved for"
    output, share = tmp_path / "out", len(runs.events[name]) // chain
    # What a resumed run repeats of its start costs it events too: allow it more each time.
    resume = ["--resume"]
    while runs.run(name, output, share + 7 * kills, *resume[:kills]) is None:
        kills += 1
        if output.exists() and name != "family":  # killed while it cleared away its state
            shutil.rmtree(output.with_name("out.partial"), ignore_errors=True)
            break
    assert kills >= min(3, chain - 2)
    assert not difference(output, whole)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.all)])
def test_a_killed_export_leaves_the_old_or_the_new_or_nothing(
    runs: Runs, tmp_path: Path, step: int
) -> None:
    """Killed every so many events, and at each of the last, where the folder gets its name."""
    other = f"compress {runs.folder}/model --keep 0.5 --method progressive --device cpu"
    short = f"--calibration {runs.folder}/text.txt --calibration-sequences 4 --sequence-length 32"
    quick = "--set scale-epochs=0 --set rounds=1"
    runs.fork(f"{other} {short} {quick} -o {tmp_path}/other", tmp_path)
    plans = [folder / "plan.grasp" for folder in (runs.whole("compress"), tmp_path / "other")]
    output = tmp_path / "place" / "out"
    old, new = (
        f"export {plan} --model {runs.folder}/model --shard-size 50KB --overwrite -o {output}"
        for plan in plans
    )
    runs.fork(old, output.parent)
    events = len(runs.fork(new, output.parent) or "")
    for place in [*range(1, events - 8, step), *range(events - 8, events + 1)]:
        # A run that finds less to clear away than the first takes fewer events.
        runs.fork(old, output.parent, place)
        if output.exists():
            assert next(verify(output)).ok is True, "its files are whole"
            assert (output / "plan.grasp").read_bytes() in {plan.read_bytes() for plan in plans}
        old, new = new, old
    assert runs.fork(new, output.parent)
    assert [path.name for path in output.parent.iterdir()] == ["out"]
    assert all(check.ok for check in verify(output))
