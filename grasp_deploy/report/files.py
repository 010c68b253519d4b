"""Check the places where drawn pages and figures may be written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import readable_disk_errors
from grasp_deploy.files.outputs import check_file_place

MARK_BYTES = 4096  # within which a page or a figure carries its mark


def check_page_place(path: Path, mark: str) -> None:
    """InputError if a page cannot be written there, or would replace a file without `mark`."""
    check_file_place(path, "--html")
    _check_replaceable(path, mark, f"--html {path}", "file")


def check_figures(folder: Path, paths: Iterable[Path], mark: str) -> None:
    """InputError if figures cannot be written there, or would replace files without `mark`."""
    with readable_disk_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--png {folder} is a file: name a folder for the figures")
    for path in paths:
        _check_replaceable(path, mark, f"--png: {path}", "folder")


def _check_replaceable(path: Path, mark: str, what: str, other: str) -> None:
    with readable_disk_errors(path):
        if not path.exists():
            return
        if path.is_file():
            with path.open("rb") as file:
                if mark.encode() in file.read(MARK_BYTES):
                    return
    raise InputError(f"{what} exists and was not written by `report`: name another {other}")
