"""Writing what was drawn: all files, or none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import is_special, sync
from grasp_deploy.files.outputs import readable_disk_errors


def check_page_place(path: Path, records: Collection[Path], mark: str) -> None:
    """InputError if a page may not be written there; only a page of ours is ever replaced.

    `mark` is what such a page holds in its first kilobytes; `records` are what it is drawn from.
    """
    with readable_disk_errors(path):
        if path.resolve() in {record.resolve() for record in records}:
            raise InputError(f"--html {path} is a record that the page is made of: name another")
        if path.is_dir():
            raise InputError(f"--html {path} is a folder: name a file in it")
        if is_special(path):
            raise InputError(f"--html {path} is a pipe or a device: name a file")
        if path.exists() and not _is_ours(path, mark):
            raise InputError(f"--html {path} exists and is no page of ours: name another file")


def check_picture_place(folder: Path) -> None:
    """InputError if figures cannot be put there."""
    with readable_disk_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--png {folder} is a file: name a folder for the figures")


def check_pictures(paths: Iterable[Path], mark: str) -> None:
    """InputError if a figure would replace what is none of ours; `mark` is as for a page."""
    for path in paths:
        with readable_disk_errors(path):
            if path.exists() and not (path.is_file() and _is_ours(path, mark)):
                raise InputError(
                    f"--png: {path} exists and is no figure of ours: name another folder"
                )


def _is_ours(path: Path, mark: str) -> bool:
    """Whether a file says in its first kilobytes that we made it."""
    with path.open("rb") as file:
        return mark.encode() in file.read(4096)


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write all files in one go, in folders made if need be; InputError if the disk refuses.

    Each is written beside its place first, and all take their names only when all are complete.
    """
    staged = {path: path.with_name(f".{path.name}.incomplete") for path in files}
    try:
        for path, content in files.items():
            with readable_disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                staged[path].write_bytes(content)
                sync(staged[path])
        for path, temporary in staged.items():
            with readable_disk_errors(path):
                temporary.replace(path)
    except BaseException:
        for temporary in staged.values():
            with suppress(OSError):
                temporary.unlink()
        raise
