"""Files that are read only where they end, replaced in one move and flushed to the disk."""

from __future__ import annotations

import os
from pathlib import Path

from grasp_deploy.errors import InputError


def read_text(path: Path) -> str:
    """The text of a regular file, links followed.

    Raises OSError and UnicodeDecodeError as `Path.read_text` does, and InputError for a pipe or a
    device, which may never end; whoever reads says which file it is, and what belongs there.
    """
    if is_special(path):
        raise InputError("it is a pipe or a device, and no file")
    return path.read_text(encoding="utf-8")


def is_special(path: Path) -> bool:
    """Whether there is something, links followed, that is neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one move."""
    temporary = path.with_name(f".{path.name}.incomplete")
    try:
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
