"""Putting a record of quality into a checkpoint that is already there: a new card and manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.card.model_card import model_card
from grasp_deploy.checkpoint.format.shapes import dense_shape, model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sync
from grasp_deploy.files.outputs import (
    MANIFEST_FILE,
    locked,
    manifest_of,
    readable_disk_errors,
    sha256,
)

QUALITY_FILE, CARD_FILE = "quality.json", "README.md"


def intact_plan(directory: Path) -> Plan:
    """The plan of a checkpoint whose files are those that its manifest states.

    The files that `renew_card` writes are left out: it makes them anew. Raises InputError if
    `directory` is no checkpoint of ours, or a file is missing or changed.
    """
    stated = manifest_of(directory)
    if PLAN_FILE not in stated:
        raise InputError(
            f"{directory} holds no pruned checkpoint: name a folder that compress made"
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

    Every other file keeps the hash that the manifest stated. Raises InputError if the disk refuses
    or another process writes the folder; the folder is then as it was.
    """
    directory = directory.resolve()
    config = read_config(directory)
    texts = {
        QUALITY_FILE: _json(quality),
        CARD_FILE: model_card(plan, dense_shape(config), model_shape(config), quality),
    }
    lock = directory.with_name(f".{directory.name}.lock")  # the one that an export takes
    with readable_disk_errors(directory), locked(lock, directory):
        hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
        files = dict(sorted((manifest_of(directory) | hashes).items()))
        _replace_texts(directory, {**texts, MANIFEST_FILE: _json({"sha256": files})})


def _replace_texts(directory: Path, texts: Mapping[str, str]) -> None:
    """Replace files one by one, in this order, after all of them are on the disk.

    A folder cannot be replaced in one move while it is in use, so a process may be killed between
    two files. No weight, config or tokenizer is touched: whatever the moment, the model loads and
    is the same. With the manifest last, it never names a file that is not there; until it is
    written `verify` finds that the card is another one. Each file is made anew from the plan and
    the figures, none from the one before it, so the same command ends what was begun.
    """
    with _staged(directory, texts) as staged:
        for name, temporary in staged.items():
            temporary.replace(directory / name)
        sync(directory)


@contextmanager
def _staged(directory: Path, texts: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """Hidden files beside the named ones, complete and on the disk; none is left behind."""
    staged = {name: directory / f".{name}.incomplete" for name in texts}
    try:
        for name, temporary in staged.items():
            temporary.write_text(texts[name], encoding="utf-8")
            sync(temporary)
        yield staged
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
