"""The folder of a family: what may lie in it, and what goes when another family takes its place."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import readable_disk_errors
from grasp_deploy.files.outputs import (
    PLAN_FILE,
    manifest_of,
    refuse_existing,
    refuse_inside_checkpoint,
)
from grasp_deploy.files.record import read_record

RECORD_FILE = "family.json"
PREFIX = "keep-"  # of a member's folder
LEFT = (".lock", ".incomplete", ".replaced")


def member_name(keep: float) -> str:
    """The folder of a member in that of its family: `keep-0.6`."""
    return f"{PREFIX}{float(keep)}"


def check_family_place(
    output: Path, names: Collection[str], *, overwrite: bool, resume: bool
) -> list[Path]:
    """What lies there and goes once the members `names` are whole.

    Members of other budgets are replaced with `overwrite` alone. Raises InputError if no family can
    be written there.
    """
    if output.name in ("", ".."):
        raise InputError(f"the output {output} has no name of its own: name a folder to make")
    with readable_disk_errors(output):
        refuse_inside_checkpoint(output)
        if output.is_symlink() or (output.exists() and not output.is_dir()):
            raise InputError(f"the output {output} is a file or a link: name a folder to make")
        if not output.exists():
            return []
        found = sorted(output.iterdir())
        foreign = next((path.name for path in found if not _is_ours(path)), None)
    if foreign:
        raise InputError(
            f"the output {output} holds something else than a family of checkpoints ({foreign}): "
            "name another folder"
        )
    if not (overwrite or resume):
        raise InputError(
            f"the output {output} exists: go on with an unfinished run by --resume, name another "
            "folder, or replace the family with --overwrite"
        )
    others = [path for path in found if path.name.startswith(PREFIX) and path.name not in names]
    if others and not overwrite:
        raise InputError(
            f"the output {output} holds {others[0].name}, which these options do not make: name "
            "another --output, or replace all that it holds with --overwrite"
        )
    for path in others:
        refuse_existing(path, overwrite=True)
    left = [path for path in found if _left_by(path) and (overwrite or _left_by(path) in names)]
    return others + left


def tidy(old: Collection[Path]) -> None:
    """Remove members of a replaced family, and what killed runs left, as listed at the start."""
    for path in old:
        if path.name.endswith(".lock"):
            path.unlink(missing_ok=True)
        elif path.is_dir():
            with suppress(InputError):  # by now it holds more than a checkpoint: it stays
                if not _left_by(path):
                    refuse_existing(path, overwrite=True)
                shutil.rmtree(path)


def _left_by(path: Path) -> str:
    """Name of the member whose run, at work or killed, makes a hidden file or folder."""
    hidden = path.name.startswith(f".{PREFIX}") and path.suffix in LEFT
    return path.stem.removeprefix(".") if hidden else ""


def _is_ours(path: Path) -> bool:
    if path.name == RECORD_FILE:
        return _is_record(path)
    if _left_by(path):
        return True
    return path.name.startswith(PREFIX) and not path.is_symlink() and PLAN_FILE in manifest_of(path)


def _is_record(path: Path) -> bool:
    try:
        return bool(read_record(path)["benchmark"] == "family")
    except InputError:
        return False
