"""Putting a record of quality into a checkpoint that is already there: a new card and manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.card.model_card import model_card
from grasp_deploy.checkpoint.card.words import card_metadata
from grasp_deploy.checkpoint.format.shapes import dense_shape, model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, check_pruned, load_plan
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import readable_disk_errors, sha256, sync, write_files
from grasp_deploy.files.json_files import as_json
from grasp_deploy.files.outputs import MANIFEST_FILE, lock_of, locked, manifest_of

QUALITY_FILE, CARD_FILE = "quality.json", "README.md"


def intact_plan(directory: Path) -> Plan:
    """The plan of a checkpoint whose files are those that its manifest states.

    The files that `renew_card` rewrites are left out. Raises InputError if `directory` is not a
    pruned checkpoint, or a file is missing or changed.
    """
    check_pruned(directory)
    stated = manifest_of(directory)
    if PLAN_FILE not in stated:
        raise InputError(
            f"{directory} holds no whole checkpoint, since {MANIFEST_FILE} names no {PLAN_FILE}: "
            "export it again"
        )
    for name in (QUALITY_FILE, CARD_FILE):
        if (directory / name).is_dir():
            raise InputError(f"{directory / name} is a folder where a file belongs: move it away")
    for name, digest in stated.items():
        path = directory / name
        if name in (QUALITY_FILE, CARD_FILE):
            continue
        if not path.is_file() or sha256(path) != digest:
            raise InputError(
                f"{path} is not the file that {MANIFEST_FILE} states, so this is "
                "another model: export the checkpoint again from its plan"
            )
    return load_plan(directory / PLAN_FILE)


def renew_card(directory: Path, plan: Plan, quality: Mapping[str, Any]) -> None:
    """Write `quality.json`, a model card with it, and the manifest of both into a checkpoint.

    Every other file keeps the hash that the manifest stated. The manifest takes its name first:
    after a kill `verify` finds what it states waiting beside, and the same command finishes this.
    Raises InputError, with the folder as it was, if the disk refuses or another process writes it.
    """
    directory = directory.resolve()
    config = read_config(directory)
    shapes, stated = (dense_shape(config), model_shape(config)), card_metadata(directory)
    texts = {
        QUALITY_FILE: as_json(quality),
        CARD_FILE: model_card(plan, *shapes, quality, from_base=stated),
    }
    with readable_disk_errors(directory), locked(lock_of(directory), directory):
        hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
        files = dict(sorted((manifest_of(directory) | hashes).items()))
        texts = {MANIFEST_FILE: as_json({"sha256": files}), **texts}
        write_files({directory / name: text.encode() for name, text in texts.items()})
        sync(directory)
