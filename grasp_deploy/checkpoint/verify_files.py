"""Checks of a checkpoint's files by `verify`, without loading a model."""

from __future__ import annotations

from filecmp import cmp
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan, pruned_shape
from grasp_deploy.checkpoint.read.folder import INDEX_FILE, listed
from grasp_deploy.checkpoint.read.validate import StoredModel, read_stored_model
from grasp_deploy.checkpoint.write.shards import index_of
from grasp_deploy.checkpoint.write.sidecar_files import (
    carried_over,
    configs,
    pruned_config,
    remote_code,
)
from grasp_deploy.files.disk import kind_of, sha256
from grasp_deploy.files.json_files import as_json, read_json
from grasp_deploy.files.outputs import MANIFEST_FILE, manifest_of
from grasp_deploy.version import __version__


class Difference(Exception):
    """The first difference that a check found."""


def check_files(directory: Path) -> str:
    """Every file against the manifest, and nothing but those that it names."""
    stated = manifest_of(directory)
    if not stated:
        raise Difference(f"{MANIFEST_FILE} cannot be read, or names no file")
    if odd := [name for name in stated if name != Path(name).name or not name.isprintable()]:
        raise Difference(f"{MANIFEST_FILE} names {odd[0]!r:.60}, which is not a file of its folder")
    there = {path.name for path in directory.iterdir() if not path.name.startswith(".")}
    if unknown := sorted(there - {*stated, MANIFEST_FILE}):
        raise Difference(f"{unknown[0]} is there and {MANIFEST_FILE} does not name it")
    for name, digest in stated.items():
        if kind_of(directory / name) != "file":
            raise Difference(f"{name:.60} is missing")
        if sha256(directory / name) != digest:
            raise Difference(f"{name} has another SHA-256 than {MANIFEST_FILE} states")
    return f"{len(stated)} files have the SHA-256 that {MANIFEST_FILE} states"


def check_shapes(directory: Path) -> str:
    """Every layer in config.json, tensors and plan."""
    shape, plan = read_stored_model(directory).shape, load_plan(directory / PLAN_FILE)
    planned = pruned_shape(plan, shape).layers
    if len(planned) != len(shape.layers):
        raise Difference(f"config.json has {len(shape.layers)} layers and the plan {len(planned)}")
    for index, (found, expected) in enumerate(zip(shape.layers, planned, strict=True)):
        if found != expected:
            raise Difference(f"layer {index} is {found} in config.json and {expected} in the plan")
    return f"{len(planned)} layers agree in config.json, tensors and plan"


def check_sidecar_files(pruned: StoredModel, plan: Plan, base: StoredModel | None) -> str:
    """Compare what stands beside the weights with what an export of this plan writes there.

    Without the base model, files that come from it are left out. Another release may have written
    more or less than this one: of its checkpoints, what both would write is compared.
    """
    directory = pruned.directory
    release = plan.provenance["versions"]["grasp_deploy"]
    same_release = release == __version__
    config = None if base is None else pruned_config(base.config, pruned_shape(plan, base.shape))
    compared = [_check_index(pruned)]
    for name, expected in configs(plan, config).items():
        compared.append(_check_config(directory / name, expected, same_release))
    if base is not None:
        wanted = carried_over(base.directory)
        compared += _check_copies(directory, wanted, "the base model's", same_release)
        if surplus := sorted(carried_over(directory).keys() - wanted.keys()):
            raise Difference(f"{surplus[0]} is there and the base model has no such file")
    if same_release:
        compared += _check_copies(directory, remote_code(), "this release's", same_release)
    vouched = {*compared, PLAN_FILE, *(path.name for path in pruned.files.values())}
    rest = sorted(manifest_of(directory).keys() - vouched)
    by = "" if same_release else f" (release {release} wrote it: as far as both write the same)"
    return (
        f"{len(compared)} files beside the weights are what an export of the plan writes{by}"
        + f"; only {MANIFEST_FILE} vouches for {listed(rest)}" * bool(rest)
    )


def _check_index(pruned: StoredModel) -> str:
    """Compare the index with the headers of the weights' files, whatever release wrote it."""
    files = {name: path.name for name, path in pruned.files.items()}
    if _parsed(pruned.directory / INDEX_FILE) != index_of(files, pruned.shape):
        raise Difference(f"{INDEX_FILE} does not describe the tensors beside it")
    return INDEX_FILE


def _check_config(path: Path, expected: dict[str, Any], exactly: bool) -> str:
    """A config against the one that an export writes; without `exactly`, where both say it."""
    found = _parsed(path)
    names = found.keys() | expected.keys() if exactly else found.keys() & expected.keys()
    for name in sorted(names):
        here, there = (as_json(c[name]) if name in c else "nothing" for c in (found, expected))
        if here != there:
            raise Difference(f"{path.name} is not what an export of the plan writes: its {name}")
    return path.name


def _check_copies(directory: Path, wanted: dict[str, Path], whose: str, exactly: bool) -> list[str]:
    """Names of files that are byte for byte those at `wanted`; without `exactly`, if there."""
    names = [name for name in wanted if exactly or (directory / name).is_file()]
    for name in names:
        if not (directory / name).is_file():
            raise Difference(f"{name} is missing, and would be {whose}")
        if not cmp(directory / name, wanted[name], shallow=False):
            raise Difference(f"{name} is not {whose}, byte for byte")
    return names


def _parsed(path: Path) -> dict[str, Any]:
    return read_json(path, "export the checkpoint again")
