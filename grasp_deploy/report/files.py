"""Check the places where drawn pages and figures may be written."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import readable_disk_errors
from grasp_deploy.files.outputs import check_file_place

MARK_BYTES = 4096  # within which a page or a figure carries its mark


def check_page_place(path: Path, records: Collection[Path], mark: str) -> None:
    """InputError if a page would replace one of `records` or a file without `mark`."""
    with readable_disk_errors(path):
        if path.resolve() in {record.resolve() for record in records}:
            raise InputError(f"--html {path} is a record that the page is made of: name another")
        if check_file_place(path, "--html") and not _is_marked(path, mark):
            raise InputError(
                f"--html {path} exists and was not written by `report`: name another file"
            )


def check_figure_folder(folder: Path) -> None:
    """InputError if figures cannot be written there."""
    with readable_disk_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--png {folder} is a file: name a folder for the figures")


def check_figures(paths: Iterable[Path], mark: str) -> None:
    """InputError if a figure would replace a file without this mark."""
    for path in paths:
        with readable_disk_errors(path):
            if path.exists() and not (path.is_file() and _is_marked(path, mark)):
                raise InputError(
                    f"--png: {path} exists and was not written by `report`: name another folder"
                )


def _is_marked(path: Path, mark: str) -> bool:
    with path.open("rb") as file:
        return mark.encode() in file.read(MARK_BYTES)
