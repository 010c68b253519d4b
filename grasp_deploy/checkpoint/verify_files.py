"""What `verify` tells of a checkpoint's files without loading a model."""

from __future__ import annotations

from dataclasses import replace
from filecmp import cmp
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan, pruned_layers, pruned_shape
from grasp_deploy.checkpoint.read.validate import (
    check_checkpoint,
    check_weights,
    listed,
    stored_dtype,
    weight_files,
)
from grasp_deploy.checkpoint.write.shards import INDEX_FILE, TensorLayout, index_of, torch_dtype
from grasp_deploy.checkpoint.write.sidecar_files import (
    carried_over,
    configs,
    pruned_config,
    travelling,
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


def check_companions(directory: Path, plan: Plan, base: Path | None) -> str:
    """All that stands beside the weights against what an export of this plan writes there.

    Without the base model's folder, what comes from it is left out. Another release may have
    written more or less than this one: of its checkpoints, what both would write is compared.
    """
    release = plan.provenance["versions"]["grasp_deploy"]
    ours = release == __version__
    config = None if base is None else _expected_config(plan, base)
    looked_at = [_check_index(directory)]
    for name, expected in configs(plan, config).items():
        looked_at.append(_check_config(directory / name, expected, ours))
    if base is not None:
        wanted = carried_over(base)
        looked_at += _check_copies(directory, wanted, "the base model's", ours)
        if surplus := sorted(carried_over(directory).keys() - wanted.keys()):
            raise Difference(f"{surplus[0]} is there and the base model has no such file")
    if ours:
        looked_at += _check_copies(directory, travelling(), "this release's", ours)
    by = "" if ours else f" (release {release} wrote it: as far as this one writes the same)"
    weights = {path.name for path in weight_files(directory).values()}
    rest = sorted(manifest_of(directory).keys() - {*looked_at, *weights, PLAN_FILE})
    return (
        f"{len(looked_at)} files beside the weights are what an export of the plan writes{by}"
        + f"; only {MANIFEST_FILE} vouches for {listed(rest)}" * bool(rest)
    )


def _expected_config(plan: Plan, base: Path) -> dict[str, Any]:
    """The config.json that an export of the plan writes."""
    config = read_config(base)
    dense = model_shape(config)
    dense = replace(dense, dtype=stored_dtype(check_weights(base, dense)))
    return pruned_config(config, pruned_shape(plan, dense))


def _check_index(directory: Path) -> str:
    """The index against the headers of the weights' files, whatever release wrote it."""
    entries = check_weights(directory, model_shape(read_config(directory)))
    layouts = {
        name: TensorLayout(torch_dtype(entry.dtype), entry.shape) for name, entry in entries.items()
    }
    expected = index_of({name: entry.path.name for name, entry in entries.items()}, layouts)
    if _parsed(directory / INDEX_FILE) != expected:
        raise Difference(f"{INDEX_FILE} is not that of the tensors beside it")
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
    """Whether a name is that of a file in the folder itself, and one that a disk can hold."""
    if not name.isprintable() or len(name.encode()) > LONGEST_NAME_BYTES:
        return False
    return name == Path(name).name and name not in ("", "..")
