"""Claiming an output, and writing a folder so that it appears whole or not at all."""

import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import exchange, kind_of, readable_disk_errors, sha256, staged_at, sync
from grasp_deploy.files.json_files import read_json
from grasp_deploy.files.sizes import format_bytes

logger = logging.getLogger(__name__)
MANIFEST_FILE = "manifest.json"  # in every checkpoint that is written
PLAN_FILE = "plan.grasp"  # in pruned ones; tools that look for weights take every *.safetensors


@contextmanager
def staged_directory(
    output: Path, *, overwrite: bool = False, size_bytes: int = 0
) -> Iterator[Path]:
    """A temporary sibling of `output` that takes its name when the block ends well.

    Everything in it is flushed to the disk first. If the block fails, nothing is left behind; the
    next run clears what a killed one left. With `overwrite` the old folder goes after the new one
    has its name. Open it before long work: what stands in the way is found when it opens. Raises
    InputError if the output exists, another process is writing it, something else has the name of
    the sibling or of the lock, or the disk has less room than `size_bytes`.
    """
    refuse_existing(output, overwrite=overwrite)
    check_room(output, size_bytes)
    staging = staged_at(output)
    with ExitStack() as held:
        with readable_disk_errors(output):
            held.enter_context(locked(lock_of(output), output))
            staging.mkdir(parents=True)
        try:
            with readable_disk_errors(output, within=staging):  # long work may fail elsewhere
                yield staging
            with readable_disk_errors(output):
                for path in staging.iterdir():
                    sync(path)
                sync(staging)
                _refuse(output, overwrite)  # again: somebody may have made it meanwhile
                _replace(staging, output)
            logger.info("wrote %s", output)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise


def _drop_left(output: Path) -> None:
    """Remove what a killed run left beside an output, after putting back what it had moved away."""
    left = [path for path in (_replaced(output), staged_at(output)) if os.path.lexists(path)]
    if not left and not lock_of(output).exists():
        return
    with locked(lock_of(output), output):  # else a run is at work there
        _put_back(output)
        for path in left:
            is_ours = kind_of(path) in ("folder", None) and not path.is_symlink()
            if not is_ours or any(map(Path.is_dir, path.glob("*"))):  # None: it has been put back
                raise InputError(f"{path} is in the way: move it, or name another output")
            shutil.rmtree(path, ignore_errors=True)


def check_file_place(path: Path, option: str) -> bool:
    """Raise InputError, naming `option`, if no file can be written there; True if one exists.

    A checkpoint takes no file: its manifest would no longer match.
    """
    with readable_disk_errors(path):
        with suppress(FileNotFoundError, NotADirectoryError):
            beside = staged_at(path) if path.name else path
            beside.stat()  # raises for a name that is too long to be written to
        refuse_inside_checkpoint(path)
        kind = kind_of(path)
        parents = (parent for parent in path.absolute().parents if parent.exists())
        folder = next(parents, path)
    if kind == "folder":
        raise InputError(f"{option} {path} is a folder: name a file in it")
    if kind == "special":
        raise InputError(f"{option} {path} is a pipe or a device: name a file")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{option} {path} cannot be written in {folder}: name another file")
    return kind == "file"


def check_room(output: Path, size_bytes: int, what: str = "the output") -> None:
    """Raise InputError if the disk of a folder to be written has fewer bytes left than it takes."""
    folder = next(parent for parent in output.absolute().parents if parent.exists())
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < size_bytes:
        raise InputError(
            f"the disk of {output} has {format_bytes(free_bytes)} left and {what} takes "
            f"{format_bytes(size_bytes)}: free some space or name another folder"
        )


def lock_of(output: Path) -> Path:
    """The lock file that every writer of the folder `output` holds."""
    return output.with_name(f".{output.name}.lock")


@contextmanager
def locked(lock_path: Path, output: Path) -> Iterator[None]:
    """Hold a lock file, which goes with the process.

    Raises InputError if another process holds it. Lock files are empty: a link, or a file of that
    name with content, is not a lock and stays.
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
            held = False  # FileNotFoundError: the process that held it has just removed it
        if not held:
            raise InputError(
                f"another run is at work on {output}: wait for it, or name another output"
            )
        try:
            yield
        finally:
            lock_path.unlink(missing_ok=True)


def check_rewritable(directory: Path) -> None:
    """Raise InputError if files of a folder cannot be replaced, or another process writes there."""
    directory = directory.resolve()
    with readable_disk_errors(directory), locked(lock_of(directory), directory):
        if not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))


def check_named(output: Path) -> None:
    """Raise InputError for an output such as `.`, beside which no file can be named after it."""
    if output.name in ("", ".."):
        raise InputError(f"the output {output} has no name of its own: name a folder to make")


def refuse_existing(output: Path, *, overwrite: bool) -> None:
    """Raise InputError if `output` exists and may not be replaced; only what has a manifest may."""
    check_named(output)
    with readable_disk_errors(output):
        _drop_left(output)
        _refuse(output, overwrite)


def _refuse(output: Path, overwrite: bool) -> None:
    refuse_inside_checkpoint(output)
    if output.is_symlink():
        raise InputError(f"the output {output} is a link: name the folder itself, or another")
    if not output.exists():
        return
    if not output.is_dir():
        raise InputError(f"the output {output} is a file, not a folder: name another one")
    if not overwrite:
        raise InputError(
            f"the output {output} exists: name another folder, or replace it with --overwrite"
        )
    stated = manifest_of(output)
    left = {path.name for path in output.glob(".*.incomplete")}  # by a killed `renew_card`
    known = {*stated, MANIFEST_FILE, *left} if stated else set()
    foreign = sorted(p.name for p in output.iterdir() if p.name not in known or p.is_dir())
    if foreign:
        raise InputError(
            f"the output {output} holds something else than a pruned checkpoint ({foreign[0]}), "
            "which --overwrite does not delete: name another folder"
        )


def manifest_of(directory: Path) -> dict[str, Any]:
    """SHA-256 by file name from a checkpoint's manifest.

    Empty without a readable one, and for one that names anything outside of its folder.
    """
    try:
        stated = read_json(directory / MANIFEST_FILE, "")["sha256"]
    except (InputError, KeyError):
        return {}
    named = stated if isinstance(stated, dict) else {}
    return named if all(n == Path(n).name and n.isprintable() for n in named) else {}


def changed_files(
    directory: Path, stated: Mapping[str, str], may_lack: Sequence[str] = ()
) -> list[str]:
    """The files of a manifest that have another SHA-256 in a folder, or are missing and may not."""
    paths = {name: directory / name for name in stated}
    kinds = {n: kind_of(p) for n, p in paths.items() if n not in may_lack or kind_of(p)}
    return [n for n, kind in kinds.items() if kind != "file" or sha256(paths[n]) != stated[n]]


def refuse_inside_checkpoint(output: Path) -> None:
    """Raise InputError if an output lies in the folder of a pruned checkpoint."""
    # Of links too, a loop of them among those; one at the output's own place is replaced.
    folder = Path(os.path.realpath(output.parent))
    for parent in (folder, *folder.parents):
        if PLAN_FILE in manifest_of(parent):
            raise InputError(
                f"the output {output} lies in the checkpoint {parent}, whose manifest would no "
                "longer match: name a place outside of it"
            )


def _replace(staging: Path, output: Path) -> None:
    """Move `staging` to `output`, if the disk can, with a whole folder there at every moment."""
    old = _replaced(output)
    try:
        if not exchange(staging, output):
            if output.exists():
                output.rename(old)
            staging.rename(output)
    except BaseException:
        _put_back(output)
        raise
    sync(output.parent)
    for path in (staging, old):
        shutil.rmtree(path, ignore_errors=True)


def _replaced(output: Path) -> Path:
    """The name under which the old folder waits until the new one has taken its place."""
    return output.with_name(f".{output.name}.replaced")


def _put_back(output: Path) -> None:
    old = _replaced(output)
    if not output.exists() and (old / MANIFEST_FILE).is_file():
        old.rename(output)
