"""Records of `evaluate tasks`, and which of their models are the ones of a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.changes import task_changes
from grasp_deploy.report.records import NamedRecord, read_records

SIZES = ("pruned", "hidden_size", "vocab_size", "parameters", "layers")  # whatever the dtype

Model = Mapping[str, Any]


def task_rows(paths: Sequence[Path], base: Path, directory: Path) -> list[dict[str, Any]]:
    """The rows of `task_changes` of a checkpoint and its dense model, from records of tasks.

    A model is told by the hashes of its weights; in records of older releases by its shape. Raises
    InputError for a file that is no record of tasks, or lacks one of the two models, and for a task
    that two records have.
    """
    if not paths:
        return []
    identities = [
        (base, file_hashes(base), "the dense model"),
        (directory, file_hashes(directory), str(directory)),
    ]
    rows: list[dict[str, Any]] = []
    for path, named in zip(paths, read_records(paths), strict=True):
        if named.record["benchmark"] != "tasks":
            raise InputError(
                f"--record {path} is a record of {named.record['benchmark']}: name one that "
                "`grasp-deploy evaluate tasks --output` wrote"
            )
        found = task_changes(
            *(_cells(named, _the_one(path, named, *identity)) for identity in identities)
        )
        for row in found:
            if row["task"] in [other["task"] for other in rows]:
                raise InputError(f"--record {path} has {row['task']} once more: name one of them")
        rows += found
    return rows


def _the_one(
    path: Path, named: NamedRecord, folder: Path, hashes: dict[str, str], what: str
) -> Model:
    """The record's model that lies in a folder; its name decides where several are alike."""
    models, shape = named.record["models"], model_shape(read_config(folder))
    fitting = [model for model in models if _is(model, shape, hashes)]
    if len(fitting) > 1:
        fitting = [model for model in fitting if model["name"] == folder.resolve().name]
    if len(fitting) != 1:
        names = ", ".join(model["name"] for model in models)
        raise InputError(
            f"--record {path} has the models {names}, and not just one of them is {what}: name a "
            "record of `grasp-deploy evaluate tasks` on the dense model and this checkpoint"
        )
    return fitting[0]


def _is(model: Model, shape: ModelShape, hashes: dict[str, str]) -> bool:
    """Whether a record's model has this shape, and these weights where the record tells them."""
    ours, theirs = footprint(shape).as_dict(), model["footprint"]
    same_weights = model.get("weight_hashes", hashes) == hashes
    return same_weights and all(theirs.get(key) == ours[key] for key in SIZES)


def _cells(named: NamedRecord, model: Model) -> list[dict[str, Any]]:
    return [cell for cell in named.record["cells"] if cell["model"] == model["name"]]
