"""Writing files and folders so that they appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import read_text, sync

MANIFEST_FILE = "manifest.json"  # every checkpoint of ours has one
PLAN_FILE = "plan.safetensors"  # and this one too


@contextmanager
def staged_directory(output: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary sibling of `output` that takes its name when the block ends well.

    Everything in it is flushed to the disk first. If the block fails, nothing is left behind; what
    a killed process left behind is cleared by the next run. With `overwrite` the old folder goes
    only after the new one is complete.

    Raises InputError if the output is in the way, or another process is writing it.
    """
    refuse_existing(output, overwrite=overwrite)
    staging = output.with_name(f".{output.name}.incomplete")
    with readable_disk_errors(output), locked(_lock_of(output), output):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            yield staging
            for path in staging.iterdir():
                sync(path)
            sync(staging)
            _replace(staging, output)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise


def check_writable(output: Path) -> None:
    """InputError if no folder of this name could be written now; nothing is left behind."""
    with readable_disk_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name[:64]}.", dir=output.parent):
            pass


def check_room(output: Path, size_bytes: int) -> None:
    """InputError if the disk of a folder to be written has no room for so much."""
    folder = next(parent for parent in output.absolute().parents if parent.exists())
    free = shutil.disk_usage(folder).free
    if free < size_bytes:
        raise InputError(
            f"the disk of {output} has {free / 2**30:.2f} GiB left and the output takes "
            f"{size_bytes / 2**30:.2f}: free some space or name another folder"
        )


@contextmanager
def locked(lock_path: Path, output: Path) -> Iterator[None]:
    """Hold a lock file, which goes with the process; InputError if another process holds it.

    Ours are empty: a file of that name that is not, or a link, is somebody's and stays.
    """
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    if lock_path.is_symlink() or (lock_path.exists() and lock_path.stat().st_size):
        raise InputError(f"{lock_path} is in the way: move it, or name another output")
    descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(lock.fileno()), lock_path.stat())
        except (BlockingIOError, FileNotFoundError):
            held = False  # FileNotFoundError: whoever held it has just removed it
        if not held:
            raise InputError(
                f"another run is at work on {output}: wait for it, or name another output"
            )
        try:
            yield
        finally:
            lock_path.unlink(missing_ok=True)


def refuse_existing(output: Path, *, overwrite: bool) -> None:
    """InputError if `output` is there and may not be replaced; only our checkpoints ever may."""
    if output.name in ("", ".."):
        raise InputError(f"the output {output} has no name of its own: name a folder to make")
    try:
        str(output).encode()
    except UnicodeEncodeError:
        raise InputError(f"the output {str(output)!r} is no UTF-8: choose another name") from None
    with readable_disk_errors(output):
        for parent in output.absolute().parents:
            if PLAN_FILE in manifest_of(parent):
                raise InputError(
                    f"the output {output} lies in the checkpoint {parent}, which would no longer "
                    "be what its manifest says: name a folder outside of it"
                )
        if output.is_symlink():
            raise InputError(f"the output {output} is a link: name the folder itself, or another")
        _recover(output)
        if not output.exists():
            return
        if not output.is_dir():
            raise InputError(f"the output {output} is a file, not a folder: name another one")
        if not overwrite:
            raise InputError(
                f"the output {output} exists: name another folder, or replace it with --overwrite"
            )
        foreign = sorted(path.name for path in output.iterdir() if not _is_ours(path))
        if foreign:
            raise InputError(
                f"the output {output} holds something else than a pruned checkpoint "
                f"({foreign[0]}), which --overwrite does not delete: name another folder"
            )


def manifest_of(directory: Path) -> dict[str, str]:
    """SHA-256 by file name that a checkpoint states; empty if it states none that can be read."""
    try:
        stated = json.loads(read_text(directory / MANIFEST_FILE))["sha256"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return stated if isinstance(stated, dict) else {}


def _is_ours(path: Path) -> bool:
    """Whether a file in an output is one that an export wrote there."""
    stated = manifest_of(path.parent)
    return path.is_file() and bool(stated) and path.name in {*stated, MANIFEST_FILE}


@contextmanager
def readable_disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into one clear line."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: "the disk is full: free some space or name another folder",
            errno.EDQUOT: "your disk quota is used up: free some space or name another folder",
            errno.EACCES: "you may not write there: name another folder or change its permissions",
            errno.EPERM: "you may not write there: name another folder or change its permissions",
            errno.EROFS: "the disk is read-only: name another folder",
            errno.ENOENT: "no folder can be made there: name another one",
            errno.ENAMETOOLONG: "the name is too long: choose a shorter one",
            errno.EFBIG: "files may not grow so large there: name another folder or lift the limit",
            errno.ENOTDIR: "a part of that path is a file: name another folder",
            errno.EEXIST: "a part of that path is a file: name another folder",
        }
        if error.errno not in reasons:
            raise
        raise InputError(f"cannot write {path}: {reasons[error.errno]}") from None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace(staging: Path, output: Path) -> None:
    old = _replaced(output)
    shutil.rmtree(old, ignore_errors=True)
    try:
        if output.exists():
            output.rename(old)
        staging.rename(output)
    except BaseException:
        _put_back(output)
        raise
    sync(output.parent)
    shutil.rmtree(old, ignore_errors=True)


def _lock_of(output: Path) -> Path:
    return output.with_name(f".{output.name}.lock")


def _replaced(output: Path) -> Path:
    """Where the old folder waits until the new one has taken its place."""
    return output.with_name(f".{output.name}.replaced")


def _recover(output: Path) -> None:
    """Put back what a stopped run had moved; InputError if it is still at work."""
    if _replaced(output).exists():
        with locked(_lock_of(output), output):
            _put_back(output)


def _put_back(output: Path) -> None:
    """The old folder under its name again, if whoever replaced it was stopped halfway."""
    old = _replaced(output)
    if not output.exists() and (old / MANIFEST_FILE).is_file():
        old.rename(output)
