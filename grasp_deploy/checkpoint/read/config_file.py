"""A config.json named by itself, under whatever name, or by its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.format.shapes import read_config
from grasp_deploy.checkpoint.read.source import path_of, resolve_model
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import kind_of
from grasp_deploy.files.json_files import read_json


def resolve_config(name: str, revision: str | None = None) -> Path:
    """A config file, or a model's folder by its path or hub id; InputError for an unknown one."""
    path = path_of(name)
    if kind_of(path) == "file":
        return path
    if path.suffix == ".json" and not path.is_dir():
        raise InputError(f"there is no file {name}: name a model's folder or its config.json")
    return resolve_model(name, revision, weights=False).directory


def read_config_at(path: Path) -> dict[str, Any]:
    """Parse the config of a file or of a model folder; InputError if it is missing or broken."""
    if path.is_dir():
        return read_config(path)
    return read_json(path, "name a model's folder or its config.json")


def positions_at(path: Path) -> int | None:
    """Positions that the model of a file or folder was made for; None where it is silent.

    Raises InputError as `read_config_at` does, and where the config has no whole number there.
    """
    positions = read_config_at(path).get("max_position_embeddings")
    if not positions:
        return None
    if type(positions) is not int or positions < 0:
        raise InputError(
            f"max_position_embeddings {positions!r:.40} of {path} is no positive whole number: "
            "mend the config, or fetch the model again"
        )
    return positions
