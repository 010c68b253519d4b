"""Places where drawn pages and figures may be written."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import readable_disk_errors
from grasp_deploy.files.outputs import check_file_place


def check_page_place(path: Path, records: Collection[Path], mark: str) -> None:
    """InputError if a page may not be written there; only a page of ours is ever replaced.

    `mark` is what such a page holds in its first kilobytes; `records` are what it is drawn from.
    """
    with readable_disk_errors(path):
        if path.resolve() in {record.resolve() for record in records}:
            raise InputError(f"--html {path} is a record that the page is made of: name another")
        if check_file_place(path, "--html") and not _is_ours(path, mark):
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
