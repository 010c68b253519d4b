"""Plan + base weights -> the pruned checkpoint: a dense Hugging Face folder, stock tensor names.

The export streams: a tensor is read from the base model, cut, and written before the next is read.
Tensors that were fitted to the calibration text come ready-made instead. The same plan and the same
weights give the same bytes, whoever exports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from grasp_deploy.checkpoint.card.model_card import model_card
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, check_plan_fits, pruned_shape
from grasp_deploy.checkpoint.read.source import file_hashes, resolve_model
from grasp_deploy.checkpoint.read.validate import TensorEntry, check_weights, stored_dtype
from grasp_deploy.checkpoint.write.shards import (
    TensorLayout,
    read_tensor,
    torch_dtype,
    write_shards,
)
from grasp_deploy.checkpoint.write.sidecar_files import pruned_config, write_companions
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sha256
from grasp_deploy.files.json_files import write_json
from grasp_deploy.files.outputs import (
    MANIFEST_FILE,
    manifest_of,
    refuse_existing,
    staged_directory,
)
from grasp_deploy.pruning.slicing import LayerCut, cut_tensor, layer_cut
from grasp_deploy.pruning.units import UnitTable

SHARD_BYTES = 4_000_000_000


def export(
    plan: Plan,
    model: str | Path,
    output: str | Path,
    *,
    revision: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    fitted: Mapping[str, TensorEntry] | None = None,
    beside: Mapping[str, str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ModelShape:
    """Write the checkpoint that a plan makes of its base model; returns its shape.

    `model` is the base model's folder or hub id, by default at the plan's revision. Memory stays
    near the largest tensor (section 3.5). `fitted` says where the plan's fitted tensors lie, by
    default in the checkpoint that the plan was loaded from. `beside` maps names of more text files
    to their contents; `on_progress` hears tensors written and tensors in all. The output appears
    whole or not at all.

    Raises InputError if the plan is another model's, weights are damaged, or the output exists.
    """
    output = Path(output)
    refuse_existing(output, overwrite=overwrite)
    base = resolve_base(plan, str(model), revision)
    if output.exists() and output.resolve() == base.resolve():
        raise InputError(f"the output {output} is the base model's folder: name another one")
    config = read_config(base)
    dense = model_shape(config)
    entries = check_weights(base, dense)
    dense = replace(dense, dtype=stored_dtype(entries))
    check_plan_fits(plan, dense, file_hashes(base))
    if fitted is None:
        fitted = _fitted_beside(plan)
    assert sorted(fitted) == sorted(plan.fitted), "the plan names other fitted tensors"
    pruned = pruned_shape(plan, dense)
    layouts = {
        name: TensorLayout(torch_dtype(entries[name].dtype), shape)
        for name, shape in pruned.tensor_shapes().items()
    }
    with staged_directory(output, overwrite=overwrite) as staging:
        hashes = {}
        tensors = cut_tensors(plan, dense, entries, list(layouts), fitted)
        written = 0
        for file, digest in write_shards(staging, layouts, tensors, shard_bytes):
            if digest is not None:
                hashes[file] = digest
                continue
            written += 1
            if on_progress is not None:
                on_progress(written, len(layouts))
        write_companions(staging, base, plan, pruned_config(config, pruned))
        plan.save(staging / PLAN_FILE)
        for name, text in (beside or {}).items():
            (staging / name).write_text(text, encoding="utf-8")
        (staging / "README.md").write_text(model_card(plan, dense, pruned), encoding="utf-8")
        _write_manifest(staging, hashes)
    return pruned


def resolve_base(plan: Plan, model: str, revision: str | None = None) -> Path:
    """The folder of a plan's base model; from the hub at the plan's own revision by default."""
    if not Path(model).is_dir():
        revision = revision or plan.provenance["revision"]
    return resolve_model(model, revision).directory


def base_of(plan: Plan, model: str | None, loss: str, remedy: str = "") -> Path:
    """The folder of the very model that a plan was made for; `model` says where it is now.

    By default the plan says. Raises InputError for another model, and if the default is out of
    reach: `loss` says what cannot be done then, and `remedy` what else than --model would help.
    """
    try:
        directory = resolve_base(plan, model or plan.provenance["config"]["model"])
    except InputError as error:
        if model is not None:
            raise
        raise InputError(
            f"the base model that the plan names is out of reach, and without it {loss} ({error}): "
            f"name it with --model{remedy}"
        ) from None
    check_plan_fits(plan, model_shape(read_config(directory)), file_hashes(directory))
    return directory


def _fitted_beside(plan: Plan) -> dict[str, TensorEntry]:
    """Where a loaded plan's fitted tensors lie: in the checkpoint that it belongs to.

    Raises InputError if there are any, and the plan's file lies in no whole checkpoint.
    """
    if not plan.fitted:
        return {}
    folder = (plan.path or Path(PLAN_FILE)).parent
    try:
        entries = check_weights(folder, model_shape(read_config(folder)))
        found = {name: entries[name] for name in plan.fitted}
        stated = manifest_of(folder)
        changed = [
            file.name
            for file in sorted({entry.path for entry in found.values()})
            if sha256(file) != stated.get(file.name)
        ]
        if changed:
            raise InputError(f"{changed[0]} has another SHA-256 than {MANIFEST_FILE} states")
    except (InputError, KeyError) as error:
        raise InputError(
            f"{len(plan.fitted)} tensors of this plan were fitted to the calibration text and lie "
            f"in its checkpoint alone, which {folder} is not ({error}): name the {PLAN_FILE} in "
            "the checkpoint's own folder"
        ) from None
    return found


def cut_tensors(
    plan: Plan,
    dense: ModelShape,
    entries: Mapping[str, TensorEntry],
    names: list[str],
    fitted: Mapping[str, TensorEntry],
    *,
    in_float32: bool = False,
) -> Iterator[tuple[str, Tensor]]:
    """Each named tensor of the pruned model, one at a time: cut from the base weights, or fitted.

    In the dtype of the base weights, to which folded scales are rounded, or in float32 unrounded.
    """
    units = UnitTable.of_layers(plan.dense_layers)
    cut: tuple[int, LayerCut] | None = None
    for name in names:
        tensor = read_tensor((fitted.get(name) or entries[name]).path, name)
        tensor = tensor.to(torch.float32 if in_float32 else torch_dtype(entries[name].dtype))
        if name in fitted:
            pass  # cut and scaled when it was fitted
        elif name.startswith("model.layers."):
            layer, tail = layer_and_tail(name)
            if cut is None or cut[0] != layer:
                group, width = dense.query_heads_per_group, dense.head_dim
                cut = (layer, layer_cut(units, layer, plan.mask, plan.scales, group, width))
            tensor = cut_tensor(tail, tensor, cut[1])
        yield name, tensor


def layer_and_tail(name: str) -> tuple[int, str]:
    """Layer index, and name within the layer, of a tensor `model.layers.I.TAIL`."""
    _, _, index, tail = name.split(".", 3)
    return int(index), tail


def _write_manifest(staging: Path, hashes: dict[str, str]) -> None:
    """SHA-256 of every file; those of the weights were taken while writing."""
    others = {path.name: sha256(path) for path in staging.iterdir() if path.name not in hashes}
    files = dict(sorted((hashes | others).items()))
    write_json(staging / MANIFEST_FILE, {"sha256": files})
