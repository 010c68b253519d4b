"""Write a page and figures: all files or none, and only over files that a report wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import is_special, sync
from grasp_deploy.files.outputs import readable_disk_errors

MARK_BYTES = 4096  # within which a page or a figure carries its mark


def check_page_place(path: Path, records: Collection[Path], mark: str) -> None:
    """InputError if a page may not be written there.

    `records` are the files that the page is drawn from; `mark` identifies an earlier page.
    """
    with readable_disk_errors(path):
        if path.resolve() in {record.resolve() for record in records}:
            raise InputError(f"--html {path} is a record that the page is made of: name another")
        if path.is_dir():
            raise InputError(f"--html {path} is a folder: name a file in it")
        if is_special(path):
            raise InputError(f"--html {path} is a pipe or a device: name a file")
        if path.exists() and not _is_marked(path, mark):
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


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write all files or none, making their folders; InputError if the disk refuses one.

    Each is written beside its place first; all are renamed only when all are complete.
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
