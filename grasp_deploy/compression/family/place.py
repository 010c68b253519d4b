"""The folder of a family: what may lie in it, and what goes when another family takes its place."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import readable_disk_errors
from grasp_deploy.files.outputs import PLAN_FILE, manifest_of, refuse_inside_checkpoint
from grasp_deploy.files.record import read_record

RECORD_FILE = "family.json"
PREFIX = "keep-"  # of a member's folder


def member_name(config: CompressConfig) -> str:
    """The folder of a member in that of its family: `keep-0.6`."""
    assert config.keep is not None, "checked with the config"
    return f"{PREFIX}{float(config.keep)}"


def check_family_place(output: Path, *, overwrite: bool, resume: bool) -> None:
    """InputError if no family can be written there; only members of families are ever replaced."""
    if output.name in ("", ".."):
        raise InputError(f"the output {output} has no name of its own: name a folder to make")
    with readable_disk_errors(output):
        refuse_inside_checkpoint(output)
        if output.is_symlink() or (output.exists() and not output.is_dir()):
            raise InputError(f"the output {output} is a file or a link: name a folder to make")
        if not output.exists():
            return
        foreign = next((path.name for path in sorted(output.iterdir()) if not _is_ours(path)), None)
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


def tidy(output: Path, names: Collection[str]) -> None:
    """Remove members of a replaced family, and what killed runs left."""
    for path in output.iterdir():
        if path.is_dir() and path.name not in names:
            shutil.rmtree(path)
        elif path.name.endswith(".lock"):
            path.unlink()


def _is_ours(path: Path) -> bool:
    name = path.name.removeprefix(".")
    if name != path.name:  # of a run at work, or of a killed one
        return name.startswith(PREFIX) and name.endswith((".lock", ".incomplete", ".replaced"))
    if name == RECORD_FILE:
        return _is_record(path)
    return name.startswith(PREFIX) and not path.is_symlink() and PLAN_FILE in manifest_of(path)


def _is_record(path: Path) -> bool:
    try:
        return bool(read_record(path)["benchmark"] == "family")
    except InputError:
        return False
