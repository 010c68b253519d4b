"""Regular files: read, replaced in one move and flushed to the disk."""

import ctypes
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from grasp_deploy.errors import InputError

WRITE_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG),
}
HERE, EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
PIECE_BYTES = 2**20  # of a write; hundreds of MiB at once took Linux several times as long


def kind_of(path: str | Path) -> Literal["file", "folder", "special", None]:
    """The kind of a path's target, links followed; "special" is a pipe or a device.

    None where nothing exists, which includes names that no file can have and links in a circle.
    """
    try:
        mode = Path(path).stat().st_mode
    except ValueError:  # a NUL in the name
        return None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
            return None
        raise
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "special"


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Text of a regular file, links followed.

    Raises OSError and UnicodeDecodeError as `Path.read_text` does, and InputError for a pipe or a
    device, which may never end; the caller adds the path and the remedy.
    """
    if kind_of(path) == "special":
        raise InputError("it is a pipe or a device, not a file")
    return path.read_text(encoding=encoding)


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one move."""
    write_files({path: text.encode()})


def write_files(files: Mapping[Path, bytes | Sequence[bytes | memoryview]]) -> None:
    """Replace files, in folders made if need be, after all of them are complete on the disk.

    They take their names in order. Contents in parts are written one after another. The folder may
    be a stranger's: a link in it is replaced, never followed. Raises InputError, with nothing
    changed, if the disk refuses.
    """
    staged = {path: staged_at(path) for path in files}
    try:
        for path, content in files.items():
            with readable_disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                staged[path].unlink(missing_ok=True)  # what a killed run left
                with staged[path].open("xb") as file:
                    for part in [content] if isinstance(content, bytes) else content:
                        write_pieces(file, part)
                sync(staged[path])
        for path, temporary in staged.items():
            with readable_disk_errors(path):
                temporary.replace(path)
    except BaseException:
        for temporary in staged.values():
            if kind_of(temporary):
                temporary.unlink()
        raise


def staged_at(path: Path) -> Path:
    """The path beside its own that a file or folder is written to until it is complete."""
    return path.with_name(f".{path.name}.incomplete")


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two folders in one step; False where one is missing or the disk cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2  # of Linux's C libraries
    except AttributeError:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return rename(HERE, names[0], HERE, names[1], EXCHANGE) == 0


def write_pieces(file: BinaryIO, content: bytes | memoryview) -> None:
    """Write to an open file in small pieces."""
    view = memoryview(content)
    for start in range(0, len(view), PIECE_BYTES):
        file.write(view[start : start + PIECE_BYTES])


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits; InputError for a pipe or a device."""
    if kind_of(path) == "special":
        raise InputError(f"{path} is a pipe or a device, not a file: put the file in its place")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def readable_disk_errors(path: Path, *, within: Path | None = None) -> Iterator[None]:
    """Turn an OSError such as of a full disk or a forbidden folder into an InputError.

    One that names only files outside of the folder `within`, if given, stays what it is.
    """
    try:
        yield
    except OSError as error:
        ends = error.filename, error.filename2  # the second where a copy was written
        named = [Path(name) for name in ends if isinstance(name, str)]
        elsewhere = within and named and not any(within in path.parents for path in named)
        if elsewhere or error.errno not in WRITE_ERRORS:
            raise
        raise InputError(
            f"cannot write {path} ({error.strerror}): make room there, allow it, or name another "
            "place"
        ) from None
