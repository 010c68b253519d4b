"""Checks of a checkpoint's files by `verify`, without loading a model."""

from __future__ import annotations

from filecmp import cmp
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan, pruned_layers, pruned_shape
from grasp_deploy.checkpoint.read.validate import (
    INDEX_FILE,
    StoredModel,
    check_checkpoint,
    listed,
)
from grasp_deploy.checkpoint.write.shards import TensorLayout, index_of, torch_dtype
from grasp_deploy.checkpoint.write.sidecar_files import (
    carried_over,
    configs,
    pruned_config,
    remote_code,
)
from grasp_deploy.files.disk import sha256
from grasp_deploy.files.json_files import as_json, read_json
from grasp_deploy.files.outputs import MANIFEST_FILE, manifest_of
from grasp_deploy.pruning.units import UnitTable
from grasp_deploy.version import __version__

LONGEST_NAME_BYTES = 255  # what file systems take


class Difference(Exception):
    """The first difference that a check found."""


def check_files(directory: Path) -> str:
    """Every file against the manifest, and nothing but those that it names."""
    stated = manifest_of(directory)
    if not stated:
        raise Difference(f"{MANIFEST_FILE} cannot be read, or names no file")
    if odd := [name for name in stated if not _is_bare(name)]:
        raise Difference(f"{MANIFEST_FILE} names {odd[0]!r:.60}, which is no file of its folder")
    there = {path.name for path in directory.iterdir() if not path.name.startswith(".")}
    if unknown := sorted(there - {*stated, MANIFEST_FILE}):
        raise Difference(f"{unknown[0]} is there and {MANIFEST_FILE} does not name it")
    for name, digest in stated.items():
        path = directory / name
        if not path.is_file():
            raise Difference(f"{name} is missing")
        if sha256(path) != digest:
            raise Difference(f"{name} has another SHA-256 than {MANIFEST_FILE} states")
    return f"{len(stated)} files have the SHA-256 that {MANIFEST_FILE} states"


def check_shapes(directory: Path) -> str:
    """Every layer in config.json, tensors and plan."""
    shape, plan = check_checkpoint(directory), load_plan(directory / PLAN_FILE)
    kept = UnitTable.of_layers(plan.dense_layers).kept_per_layer(plan.mask)
    if len(kept) != len(shape.layers):
        raise Difference(f"config.json has {len(shape.layers)} layers and the plan {len(kept)}")
    for index, (found, planned) in enumerate(
        zip(shape.layers, pruned_layers(shape, kept), strict=True)
    ):
        if found != planned:
            raise Difference(f"layer {index} is {found} in config.json and {planned} in the plan")
    return f"{len(shape.layers)} layers agree in config.json, tensors and plan"


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
    by = (
        "" if same_release else f" (release {release} wrote it: as far as this one writes the same)"
    )
    weights = {entry.path.name for entry in pruned.entries.values()}
    rest = sorted(manifest_of(directory).keys() - {*compared, *weights, PLAN_FILE})
    return (
        f"{len(compared)} files beside the weights are what an export of the plan writes{by}"
        + f"; only {MANIFEST_FILE} vouches for {listed(rest)}" * bool(rest)
    )


def _check_index(pruned: StoredModel) -> str:
    """Compare the index with the headers of the weights' files, whatever release wrote it."""
    layouts = {
        name: TensorLayout(torch_dtype(entry.dtype), entry.shape)
        for name, entry in pruned.entries.items()
    }
    files = {name: entry.path.name for name, entry in pruned.entries.items()}
    if _parsed(pruned.directory / INDEX_FILE) != index_of(files, layouts):
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


def _is_bare(name: str) -> bool:
    """True for a name of a file in the folder itself that a disk can hold."""
    if not name.isprintable() or len(name.encode()) > LONGEST_NAME_BYTES:
        return False
    return name == Path(name).name and name not in ("", "..")
