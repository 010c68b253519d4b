"""Outputs and unfinished runs that stand in the way of `compress`: one line, nothing changed."""

from __future__ import annotations

import fcntl
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli import conftest
from tests.cli.command import SHORT, Ended, assert_refused, environment, grasp_deploy, tree

TEXT = ("--calibration", "text.txt")


def compress(model: Path, *options: str | Path, keep: str = "0.6") -> Ended:
    return grasp_deploy("compress", model, "-o", "out", *TEXT, *SHORT, "--keep", keep, *options)


@pytest.fixture(scope="module")
def unfinished_once(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that an interrupt between learning and export leaves beside `out`."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("unfinished")
    (folder / "text.txt").write_text(conftest.TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("grasp_deploy.compression.compress.write_checkpoint", interrupt)
        ended = compress(tiny_folder)
    assert ended.code == 130
    assert "--resume" in ended.stderr
    return folder / "out.partial"


@pytest.fixture
def unfinished(unfinished_once: Path, work: Path) -> Path:
    """A copy of it in the working folder."""
    return Path(shutil.copytree(unfinished_once, work / "out.partial"))


def test_an_output_that_exists(tiny_folder: Path, work: Path) -> None:
    (work / "out").mkdir()
    before = tree(work)
    assert_refused(compress(tiny_folder), "output out exists", "another folder", "--overwrite")
    assert tree(work) == before


def test_an_output_that_is_a_link(pruned: Path, tiny_folder: Path, work: Path) -> None:
    (work / "out").symlink_to(pruned)
    for options in ((), ("--overwrite",)):
        assert_refused(compress(tiny_folder, *options), "output out is a link", "or another")
    assert (work / "out").is_symlink()


def test_overwrite_deletes_checkpoints_and_nothing_else(tiny_folder: Path, work: Path) -> None:
    model = Path(shutil.copytree(tiny_folder, work / "out"))
    before = tree(work)
    refused = compress(model, "--overwrite")
    assert_refused(refused, "output out", "--overwrite does not delete", "another folder")
    assert_refused(
        compress(tiny_folder, "-o", "text.txt", "--overwrite"), "is a file, not a folder"
    )
    assert_refused(compress(tiny_folder, "-o", ".", "--overwrite"), "name a folder")
    assert tree(work) == before
    shutil.rmtree(work / "out")
    assert compress(tiny_folder).code == 0
    first = tree(work)
    assert compress(tiny_folder, "--overwrite", keep="0.5").code == 0
    assert tree(work).keys() == first.keys()
    assert tree(work) != first


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("text.txt/out", ("text.txt/out.partial", "is a file", "another folder")),
        ("/proc/out", ("/proc/out.partial", "another")),
        ("x" * 300, ("name is too long", "shorter")),
    ],
)
def test_an_unwritable_output(
    tiny_folder: Path, work: Path, output: str, words: tuple[str, ...]
) -> None:
    before = tree(work)
    assert_refused(compress(tiny_folder, "-o", output), "cannot write", *words)
    assert tree(work) == before


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_limit_on_file_sizes_that_the_weights_exceed(tiny_folder: Path, work: Path) -> None:
    small = "--set=compensation=false"  # which saves no columns on its way
    with largest_file(100_000):
        refused = compress(tiny_folder, small)
    assert refused.code == 2
    assert refused.stderr.splitlines()[-1].startswith("error: cannot write out: files may not grow")
    assert sorted(path.name for path in work.iterdir()) == ["out.partial", "text.txt"]
    assert compress(tiny_folder, small, "--resume").code == 0
    assert sorted(path.name for path in work.iterdir()) == ["out", "text.txt"]


FULL_DISK = """
import os, subprocess, sys
from grasp_deploy.errors import InputError
from tests.cli.command import SHORT, assert_refused, grasp_deploy

def mount(*options):
    subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", "disk"], check=True)

def compress(*options):
    text = ("--calibration", "text.txt", *SHORT)
    return grasp_deploy("compress", sys.argv[1], "-o", "disk/out", *text, "--keep", "0.6", *options)

full = ("cannot write disk/out", "disk is full", "free some space")

def fails_after_a_while():
    ended = compress()
    last = ended.stderr.splitlines()[-1]  # above it stands the progress
    assert ended.code == 2 and ended.stdout == "" and last.startswith("error: "), ended
    assert all(words in last for words in full), ended

mount("-o", "size=4k")
open("disk/ballast", "wb").write(bytes(4096))  # not even the config fits
assert_refused(compress(), *full)
assert os.listdir("disk") == ["ballast"]
mount("-o", "remount,size=12k")  # config and metrics fit, the state of the scores does not
fails_after_a_while()
assert os.listdir("disk") == ["ballast"]
mount("-o", "remount,size=200k")  # the state fits, the weights do not
fails_after_a_while()
assert sorted(os.listdir("disk")) == ["ballast", "out.partial"]
mount("-o", "remount,size=20m")
assert compress("--resume").code == 0
assert sorted(os.listdir("disk")) == ["ballast", "out"]
"""


@pytest.mark.slow
def test_a_full_disk(tiny_folder: Path, work: Path) -> None:
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
    (work / "disk").mkdir()
    trial = [*own_mounts, "mount", "-t", "tmpfs", "tmpfs", "disk"]
    if not shutil.which("unshare") or subprocess.run(trial, capture_output=True).returncode:
        pytest.skip("this machine lets us mount no small disk in a namespace of its own")
    done = subprocess.run(
        [*own_mounts, sys.executable, "-c", FULL_DISK, str(tiny_folder)],
        env=environment(),
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_with_nothing_to_resume_it_starts(tiny_folder: Path, work: Path) -> None:
    assert compress(tiny_folder, "--resume").code == 0
    assert sorted(path.name for path in work.iterdir()) == ["out", "text.txt"]


def test_an_unfinished_run_in_the_way(tiny_folder: Path, work: Path, unfinished: Path) -> None:
    before = tree(work)
    words = (f"unfinished run lies in {unfinished.name}", "--resume", "--overwrite")
    assert_refused(compress(tiny_folder), *words)
    changed = ("began with other options", "--keep 0.6 -> 0.5", "--seed 0 -> 1", "--overwrite")
    assert_refused(compress(tiny_folder, "--resume", "--seed", "1", keep="0.5"), *changed)
    assert tree(work) == before
    assert compress(tiny_folder, "--resume").code == 0
    assert sorted(path.name for path in work.iterdir()) == ["out", "text.txt"]


def test_an_unfinished_run_on_other_files(tiny_folder: Path, work: Path, unfinished: Path) -> None:
    text, weights = work / "text.txt", "model.safetensors"
    text.write_text("A slow red hen walks around the busy cat. " * 100)
    words = ("began with other calibration tokens", "put the old ones back", "--overwrite")
    before = tree(work)
    assert_refused(compress(tiny_folder, "--resume"), *words)
    assert tree(work) == before
    model = Path(shutil.copytree(tiny_folder, work / "model"))
    begun = json.loads((unfinished / "inputs.json").read_text())
    begun["weights"][weights] = "0" * 64
    (unfinished / "inputs.json").write_text(json.dumps(begun))
    config = json.loads((unfinished / "compress_config.json").read_text())
    (unfinished / "compress_config.json").write_text(json.dumps({**config, "model": str(model)}))
    refused = compress(model, "--resume")
    hashes = "under the same name (their SHA-256 differs)"
    changed = f"began with other weights {hashes} and calibration tokens {hashes}: put the old"
    assert_refused(refused, changed)


def test_an_unfinished_run_of_other_releases(
    tiny_folder: Path, work: Path, unfinished: Path
) -> None:
    """Another torch, or a CPU instead of a GPU, would not continue to the same bits."""
    path = unfinished / "inputs.json"
    begun = json.loads(path.read_text())
    path.write_text(json.dumps({**begun, "torch": "1.0", "device": "cuda"}))
    before = tree(work)
    refused = compress(tiny_folder, "--resume")
    assert_refused(refused, "other device (cuda -> cpu) and torch (1.0 -> ", "--overwrite")
    assert tree(work) == before


def test_another_run_at_work(tiny_folder: Path, work: Path, unfinished: Path) -> None:
    with (unfinished / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = tree(work)
        for options in (("--resume",), ("--overwrite",)):
            refused = compress(tiny_folder, *options)
            assert_refused(refused, "another run is at work on out", "another output")
            assert tree(work) == before
    assert compress(tiny_folder, "--resume").code == 0


def test_a_foreign_folder_in_the_way(tiny_folder: Path, work: Path) -> None:
    (work / "out.partial").mkdir()
    (work / "out.partial/thesis.txt").write_text("three years of work")
    before = tree(work)
    for options in ((), ("--overwrite",), ("--resume",)):
        refused = compress(tiny_folder, *options)
        assert_refused(refused, "out.partial already exists", "move it", "another --output")
    assert tree(work) == before


def test_foreign_files_beside_the_output_stay(
    pruned: Path, tiny_folder: Path, work: Path, unfinished: Path
) -> None:
    """A file in an unfinished run, a checkpoint named like one, a file and a link named like a
    lock."""
    (unfinished / "thesis.txt").write_text("three years of work")
    shutil.copytree(pruned, work / "copy.partial")
    (work / ".file.lock").write_text("three years of work")
    (work / ".link.lock").symlink_to(work / "text.txt")
    before = tree(work)
    for name, where in (("out", "out.partial"), ("copy", "copy.partial")):
        refused = compress(tiny_folder, "--overwrite", "-o", name)
        assert_refused(refused, f"{where} already exists", "move it")
    for name in ("file", "link"):
        refused = grasp_deploy(
            "export", pruned / "plan.safetensors", "--model", tiny_folder, "-o", name
        )
        assert_refused(refused, f".{name}.lock is in the way", "move it")
    assert tree(work) == before


def test_an_output_inside_a_checkpoint(pruned: Path, tiny_folder: Path, work: Path) -> None:
    before = tree(pruned)
    refused = compress(tiny_folder, "-o", str(pruned / "deep" / "out"))
    assert_refused(refused, "lies in the checkpoint", "a folder outside of it")
    assert tree(pruned) == before


def test_a_damaged_config_of_an_unfinished_run(
    tiny_folder: Path, work: Path, unfinished: Path
) -> None:
    (unfinished / "compress_config.json").write_text("{")
    words = ("compress_config.json cannot be read", "start over with --overwrite")
    assert_refused(compress(tiny_folder, "--resume"), *words)
    (unfinished / "metrics.jsonl").write_bytes(b"\xff\xfe")
    assert compress(tiny_folder, "--overwrite").code == 0


def test_overwrite_starts_an_unfinished_run_again(
    tiny_folder: Path, work: Path, unfinished: Path
) -> None:
    assert compress(tiny_folder, "--overwrite", keep="0.5").code == 0
    assert json.loads((work / "out/compress_config.json").read_text())["keep"] == 0.5
    assert sorted(path.name for path in work.iterdir()) == ["out", "text.txt"]
