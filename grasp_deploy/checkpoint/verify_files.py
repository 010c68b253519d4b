"""Checks of a checkpoint's files by `verify`, without loading a model."""

from filecmp import cmp
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan, pruned_shape
from grasp_deploy.checkpoint.read.source import INDEX_FILE, REMOTE_CODE_FILES, listed
from grasp_deploy.checkpoint.read.validate import StoredModel, read_stored_model
from grasp_deploy.checkpoint.write.shards import index_of
from grasp_deploy.checkpoint.write.sidecar_files import (
    carried_over,
    carry_over,
    pruned_config,
    write_own_files,
)
from grasp_deploy.files.disk import kind_of
from grasp_deploy.files.json_files import as_json, read_json
from grasp_deploy.files.outputs import MANIFEST_FILE, changed_files, manifest_of
from grasp_deploy.version import __version__

WITNESSES = ("README.md", "metrics.jsonl", "quality.json")  # for people


class Difference(Exception):
    """A check found a difference, the first one, which the message describes."""


class NotProven(Exception):
    """A check can neither prove nor refute its link; the message says why."""


def check_files(directory: Path) -> str:
    """Compare all files with the manifest; Difference for one that is changed, missing or extra.

    Raises NotProven for missing remote code, which nothing here fetches from the hub.
    """
    stated = manifest_of(directory)
    if not stated:
        told = "cannot be read, or names no file, or one outside of its folder"
        raise Difference(f"{MANIFEST_FILE} {told}")
    there = {path.name for path in directory.iterdir() if not path.name.startswith(".")}
    if unknown := sorted(there - {*stated, MANIFEST_FILE}):
        raise Difference(f"{unknown[0]} is there and {MANIFEST_FILE} does not name it")
    for name in changed_files(directory, stated, REMOTE_CODE_FILES):
        is_there = kind_of(directory / name) == "file"
        state = f"has another SHA-256 than {MANIFEST_FILE} states" if is_there else "is missing"
        raise Difference(f"{name:.60} {state}")
    if absent := _absent_code(directory):
        raise NotProven(f"missing, as it is never fetched from the hub: {listed(absent)}")
    return f"{len(stated)} files have the SHA-256 that {MANIFEST_FILE} states"


def _absent_code(directory: Path) -> list[str]:
    """Remote code that a manifest names and its folder lacks."""
    named = manifest_of(directory)
    return [n for n in REMOTE_CODE_FILES if n in named and kind_of(directory / n) is None]


def check_shapes(directory: Path) -> str:
    """Compare each layer's sizes in config.json, tensors and plan; Difference if they differ."""
    shape, plan = read_stored_model(directory).shape, load_plan(directory / PLAN_FILE)
    planned = pruned_shape(plan, shape).layers
    for index, (found, expected) in enumerate(zip_longest(shape.layers, planned)):
        if found != expected:
            raise Difference(f"layer {index} is {found} in config.json and {expected} in the plan")
    return f"{len(planned)} layers agree in config.json, tensors and plan"


def check_companions(pruned: StoredModel, plan: Plan, base: StoredModel | None) -> str:
    """Compare what stands beside the weights with what an export of this plan writes there.

    Raises Difference for a file that this release would write otherwise, and for a copied file that
    is not the base model's. Raises NotProven for other differences, if another release wrote the
    checkpoint, and for what only the base model could prove.
    """
    directory = pruned.directory
    files = {name: path.name for name, path in pruned.files.items()}
    if _parsed(directory / INDEX_FILE) != index_of(files, pruned.shape):
        raise Difference(f"{INDEX_FILE} does not describe the tensors beside it")
    with TemporaryDirectory() as folder:
        made = Path(folder)
        if base is None:
            write_own_files(made, plan, _derived_config(pruned, plan))
        else:
            write_own_files(made, plan, pruned_config(base.config, pruned_shape(plan, base.shape)))
            carry_over(made, base.directory)
        written = sorted(path.name for path in made.iterdir())
        judged = [name for name in written if name not in _absent_code(directory)]
        odd = {n: told for n in judged if (told := _unlike(directory / n, made / n))}
    copies = carried_over(directory).keys()
    known = {*written, *files.values(), INDEX_FILE, PLAN_FILE, *WITNESSES}
    known |= copies if base is None else set()
    foreign = sorted(manifest_of(directory).keys() - known)
    odd |= {name: f"no export writes {name}" for name in foreign}
    release = plan.release
    for name, told in odd.items():
        if release == __version__ or name in copies:  # what the base model has, no release changes
            raise Difference(told)
    if odd:
        raise NotProven(f"release {release} wrote it, and " + "; ".join(odd.values()))
    if base is None:
        raise NotProven(
            f"without the base model nobody vouches for {listed(copies)}, nor for config.json "
            "beyond classes, sizes and dtype"
        )
    witnesses = [name for name in WITNESSES if (directory / name).is_file()]
    detail = f"{len(judged) + 1} files beside the weights are what an export of the plan writes"
    return (
        f"{detail}; only {MANIFEST_FILE} vouches for {listed(witnesses)}" if witnesses else detail
    )


def _derived_config(pruned: StoredModel, plan: Plan) -> dict[str, Any]:
    """A checkpoint's config.json, with every key that plan, tensors or family decide set anew."""
    ffn_units = plan.dense_layers[0][0]
    groups = max(groups for _, groups in plan.dense_layers)  # linear attention has none
    dense = pruned.shape.layer_of(groups, ffn_units)
    return {**pruned_config(pruned.config, pruned.shape), **dense.stated}


def _unlike(found: Path, expected: Path) -> str | None:
    """How a file differs from what an export writes (JSON by its keys); None if it does not."""
    if not found.is_file():
        return f"{found.name} is missing, and would be the base model's"
    if cmp(found, expected, shallow=False):
        return None
    keys: list[str] = []
    if found.suffix == ".json":
        mine, theirs = (
            {key: as_json(value) for key, value in _parsed(path).items()}
            for path in (found, expected)
        )
        keys = sorted({key[:60] for key, _ in mine.items() ^ theirs.items()})
        if not keys:  # in another order or layout
            return None
    whose = f": its {listed(keys)}" if keys else ""
    return f"{found.name} is not what an export of the plan writes{whose}"


def _parsed(path: Path) -> dict[str, Any]:
    return read_json(path, "export the checkpoint again")
