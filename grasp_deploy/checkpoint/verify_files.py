"""Checks of a checkpoint's files by `verify`, without loading a model."""

from __future__ import annotations

from filecmp import cmp
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grasp_deploy.checkpoint.format.shapes import LayerShape
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan, pruned_shape
from grasp_deploy.checkpoint.read.source import INDEX_FILE, listed
from grasp_deploy.checkpoint.read.validate import StoredModel, read_stored_model
from grasp_deploy.checkpoint.write.shards import index_of
from grasp_deploy.checkpoint.write.sidecar_files import (
    REMOTE_CODE_FILES,
    TOKENIZER_CONFIG,
    carried_over,
    pruned_config,
    write_own_files,
    write_sidecar_files,
)
from grasp_deploy.files.disk import kind_of, sha256, staged_at
from grasp_deploy.files.json_files import as_json, read_json
from grasp_deploy.files.outputs import MANIFEST_FILE, changed_files, manifest_of
from grasp_deploy.version import __version__

WITNESSES = ("README.md", "metrics.jsonl", "quality.json")  # they tell, and no reader loads them


class Difference(Exception):
    """The first difference that a check found."""


class NotProven(Exception):
    """What nobody here can vouch for."""


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
    waiting = changed_files(directory, stated)
    for name in waiting:
        staged = staged_at(directory / name)
        if name not in WITNESSES or kind_of(staged) != "file" or sha256(staged) != stated[name]:
            is_there = kind_of(directory / name) == "file"
            state = f"has another SHA-256 than {MANIFEST_FILE} states" if is_there else "is missing"
            raise Difference(f"{name:.60} {state}")
    if waiting:
        raise NotProven(f"the renewal of {listed(waiting)} was stopped: evaluate the card again")
    return f"{len(stated)} files have the SHA-256 that {MANIFEST_FILE} states"


def check_shapes(directory: Path) -> str:
    """Every layer in config.json, tensors and plan."""
    shape, plan = read_stored_model(directory).shape, load_plan(directory / PLAN_FILE)
    planned = pruned_shape(plan, shape).layers
    for index, (found, expected) in enumerate(zip_longest(shape.layers, planned)):
        if found != expected:
            raise Difference(f"layer {index} is {found} in config.json and {expected} in the plan")
    return f"{len(planned)} layers agree in config.json, tensors and plan"


def check_sidecar_files(pruned: StoredModel, plan: Plan, base: StoredModel | None) -> str:
    """Compare what stands beside the weights with what an export of this plan writes there.

    Raises Difference for what no release would write, and for any difference in a checkpoint of
    this release. Raises NotProven for what remains: what only the base model vouches for where that
    is not there, what another release may have written, and files that no export writes.
    """
    directory = pruned.directory
    with TemporaryDirectory() as folder:
        made = Path(folder)
        if base is None:
            write_own_files(made, plan, derived_config(pruned, plan))
        else:
            config = pruned_config(base.config, pruned_shape(plan, base.shape))
            write_sidecar_files(made, base.directory, plan, config)
        checked = {_check_index(pruned), *(path.name for path in made.iterdir())}
        expected = sorted(made.iterdir())
        unlike = [doubt for path in expected for doubt in _compared(directory / path.name, path)]
    copies = carried_over(directory).keys()
    if base is not None and (surplus := sorted(copies - checked)):
        raise Difference(f"{surplus[0]} is there and the base model has no such file")
    weights = {path.name for path in pruned.files.values()}
    known = {*checked, *copies, *weights, PLAN_FILE, *WITNESSES}
    foreign = sorted(manifest_of(directory).keys() - known)
    _raise_doubts(plan, unlike, foreign, listed(copies) if base is None else "")
    told = [name for name in WITNESSES if (directory / name).is_file()]
    detail = f"{len(checked)} files beside the weights are what an export of the plan writes"
    return f"{detail}; only {MANIFEST_FILE} vouches for {listed(told)}" if told else detail


def _raise_doubts(plan: Plan, unlike: list[str], foreign: list[str], from_base: str) -> None:
    """Raise what was found, if anything: Difference, or NotProven with the reason of each doubt."""
    release = plan.provenance["versions"]["grasp_deploy"]
    if unlike and release == __version__:
        raise Difference(unlike[0])
    doubts = [f"release {release} wrote it, and {what}" for what in unlike]
    doubts += [f"no export writes {name}" for name in foreign]
    if from_base:
        doubts.append(
            f"without the base model nobody vouches for {from_base}, nor for config.json beyond "
            "classes, sizes and dtype"
        )
    if doubts:
        raise NotProven("; ".join(doubts))


def derived_config(pruned: StoredModel, plan: Plan) -> dict[str, Any]:
    """A checkpoint's own config.json, with all that plan, tensors and family decide of it."""
    channels, groups = plan.dense_layers[0]
    heads = groups * pruned.shape.query_heads_per_group
    dense = LayerShape(heads, groups, channels)
    return {**pruned_config(pruned.config, pruned.shape), **vars(dense)}


def _check_index(pruned: StoredModel) -> str:
    """Compare the index with the headers of the weights' files, whatever release wrote it."""
    files = {name: path.name for name, path in pruned.files.items()}
    if _parsed(pruned.directory / INDEX_FILE) != index_of(files, pruned.shape):
        raise Difference(f"{INDEX_FILE} does not describe the tensors beside it")
    return INDEX_FILE


def _compared(found: Path, expected: Path) -> list[str]:
    """Compare a file with the one that an export writes.

    What only one of two configs has, other code and a file that is missing are told in words: they
    may be another release's. Raises Difference for the rest.
    """
    name = expected.name
    if name in (TOKENIZER_CONFIG, "config.json", "compress_config.json"):
        mine, theirs = _parsed(found), _parsed(expected)
        whose = f"{name} is not what an export of the plan writes: its"
        for key in sorted(mine.keys() & theirs.keys()):
            if as_json(mine[key]) != as_json(theirs[key]):
                raise Difference(f"{whose} {key}")
        keys = sorted(mine.keys() ^ theirs.keys())
        return [f"{whose} {listed(key[:60] for key in keys)}"] if keys else []
    if found.is_file() and cmp(found, expected, shallow=False):
        return []
    if name in REMOTE_CODE_FILES:
        return [f"{name} is not this release's code, byte for byte"]
    if found.is_file():
        raise Difference(f"{name} is not the base model's, byte for byte")
    return [f"{name} is missing, and would be the base model's"]


def _parsed(path: Path) -> dict[str, Any]:
    return read_json(path, "export the checkpoint again")
