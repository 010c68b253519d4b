"""Plan + base weights -> the pruned checkpoint: a dense Hugging Face folder, stock tensor names.

The writer streams: a tensor is read from the base model, cut, and written before the next is read.
Fitted tensors come ready-made instead. The same plan and weights give the same bytes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from grasp_deploy.checkpoint.card.model_card import card_metadata, model_card
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, check_layers, load_plan, pruned_shape
from grasp_deploy.checkpoint.read.source import (
    file_hashes,
    path_of,
    resolve_config,
    resolve_model,
    weight_files,
    weight_hash,
)
from grasp_deploy.checkpoint.read.validate import StoredModel, read_stored_model
from grasp_deploy.checkpoint.write.shards import read_tensor, write_shards
from grasp_deploy.checkpoint.write.sidecar_files import carry_over, pruned_config, write_own_files
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sha256
from grasp_deploy.files.json_files import write_json
from grasp_deploy.files.outputs import MANIFEST_FILE, refuse_existing, staged_directory
from grasp_deploy.files.progress import OnCount
from grasp_deploy.files.tensors import digest_of
from grasp_deploy.pruning.norms import norms_of
from grasp_deploy.pruning.slicing import LayerCut, cut_expert, cut_tensor, layer_cut
from grasp_deploy.pruning.units import UnitTable

SHARD_BYTES = 4_000_000_000


def export(
    plan: Plan,
    model: str | Path,
    output: str | Path,
    *,
    revision: str | None = None,
    base_model_id: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    beside: Mapping[str, str] | None = None,
    on_progress: OnCount = lambda done, total: None,
) -> ModelShape:
    """Write the checkpoint that a plan makes of its base model; returns its shape.

    `model` is the base model's folder or hub id, by default at the plan's revision; the plan that
    is written names `base_model_id`, if given, as the model's id on the hub. Fitted tensors come
    from the checkpoint that the plan was loaded from. `beside` maps names of more text files to
    their contents. `on_progress` receives the tensors written and the tensors in all. Memory stays
    near the largest tensor (section 3.5). The output appears whole or not at all. Raises InputError
    if the plan was made for another model, weights are damaged, or the output exists.
    """
    output = Path(output)
    refuse_existing(output, overwrite=overwrite)
    if base_model_id is not None:
        plan = plan.with_base_model_id(base_model_id)
    base = read_stored_model(resolve_base(plan, str(model), revision))
    check_layers(plan, base.shape, base.files.values())
    pruned = pruned_shape(plan, base.shape)
    fitted = fitted_beside(plan, pruned)
    with staged_directory(output, overwrite=overwrite, size_bytes=pruned.weight_bytes) as staging:
        return write_checkpoint(plan, base, staging, fitted, shard_bytes, beside, on_progress)


def resolve_base(
    plan: Plan, model: str, revision: str | None = None, *, weights: bool = True
) -> Path:
    """The folder of a plan's base model; from the hub at the plan's own revision by default.

    With `weights=False` it may be a config.json, and no weights are fetched.
    """
    if not path_of(model).is_dir():
        revision = revision or plan.provenance["revision"]
    if not weights:
        return resolve_config(model, revision)
    return resolve_model(model, revision).directory


def base_of(plan: Plan, model: str | None, loss: str, remedy: str = "") -> StoredModel:
    """Read a plan's base model, found by `reach_base`; InputError if it is another model."""
    directory = reach_base(plan, model, loss, remedy)
    base = read_stored_model(directory)
    check_layers(plan, base.shape, base.files.values())
    check_hashes(plan, file_hashes(directory))
    return base


def reach_base(
    plan: Plan, model: str | None, loss: str, remedy: str = "", *, weights: bool = True
) -> Path:
    """What `resolve_base` finds of the model that a plan was made for: `model`, or what it names.

    Raises InputError if the default is out of reach: `loss` says what cannot be done then, and
    `remedy` what else than --model would help.
    """
    try:
        name = model or plan.provenance["config"]["model"]
        return resolve_base(plan, name, weights=weights)
    except InputError as error:
        if model is not None:
            raise
        raise InputError(
            f"the base model that the plan names is out of reach, and without it {loss} ({error}): "
            f"name it with --model{remedy}"
        ) from None


def fitted_beside(plan: Plan, pruned: ModelShape) -> dict[str, Path]:
    """The file of each fitted tensor of a loaded plan, in the checkpoint that it belongs to.

    Raises InputError if the plan has some and its file does not lie in a whole checkpoint of the
    shape that it makes. SHA-256 are not compared here, but where the tensors are read.
    """
    if not plan.fitted:
        return {}
    folder = (plan.path or Path(PLAN_FILE)).parent
    with suppress(InputError, KeyError):
        stored = read_stored_model(folder)
        if stored.shape.layers == pruned.layers:
            return {name: stored.files[name] for name in plan.fitted}
    raise InputError(
        f"{len(plan.fitted)} fitted tensors of this plan lie in its checkpoint alone, and not in "
        f"{folder}: name the {PLAN_FILE} in that checkpoint's folder, or compress or heal again"
    )


def check_hashes(plan: Plan, hashes: dict[str, str]) -> None:
    """Raise InputError if weight files, as SHA-256 by name, are not those of the plan's model."""
    if not hashes.items() <= plan.provenance["weight_hashes"].items():  # old plans list stray files
        raise InputError(
            f"the plan was made for {plan.provenance['model']} with other weights than this "
            "model's (their SHA-256 differs): name the same model and revision"
        )


def write_checkpoint(
    plan: Plan,
    base: StoredModel,
    staging: Path,
    fitted: Mapping[str, Path],
    shard_bytes: int = SHARD_BYTES,
    beside: Mapping[str, str] | None = None,
    on_progress: OnCount = lambda done, total: None,
) -> ModelShape:
    """Write the checkpoint that a plan makes of a base model into a folder; returns its shape.

    `fitted` names the file of each fitted tensor, `beside` maps names of more text files to their
    contents. What was written is read back as its users will read it. Raises InputError if the base
    weights are not the plan's, a number is not finite, or the result cannot be read.
    """
    assert sorted(fitted) == sorted(plan.fitted), "the plan names other fitted tensors"
    pruned = pruned_shape(plan, base.shape)
    write_own_files(staging, plan, pruned_config(base.config, pruned))
    carry_over(staging, base.directory)
    thread = ThreadPoolExecutor(1)
    weights, *_ = weight_files(base.directory)
    base_hashes = {path.name: thread.submit(weight_hash, path) for path in weights}
    try:
        tensors = all_finite(cut_tensors(plan, base, fitted))
        hashes = write_shards(staging, pruned, tensors, shard_bytes, on_progress)
        check_hashes(plan, {name: taken.result() for name, taken in base_hashes.items()})
    finally:
        thread.shutdown(cancel_futures=True)
    plan.save(staging / PLAN_FILE)
    for name, text in (beside or {}).items():
        (staging / name).write_text(text, encoding="utf-8")
    card = model_card(plan, base.shape, pruned, from_base=card_metadata(base.directory))
    (staging / "README.md").write_text(card, encoding="utf-8")
    write_manifest(staging, hashes)
    # Read before it is asserted: readers refuse what they cannot use under `python -O` too.
    written, its_plan = read_stored_model(staging), load_plan(staging / PLAN_FILE)
    assert written.shape == pruned, "what was written has another shape"
    assert torch.equal(its_plan.mask, plan.mask), "its plan has another mask"
    return pruned


def all_finite(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Pass tensors on; InputError for one with a number that is not finite."""
    for name, tensor in tensors:
        if not all(map(math.isfinite, tensor.aminmax())):  # NaN shows in both; makes no copy
            raise InputError(
                f"{name} would hold numbers that are not finite in {tensor.dtype}: fetch the base "
                "model again, or take it in bfloat16 or float32"
            )
        yield name, tensor


def cut_tensors(
    plan: Plan, base: StoredModel, fitted: Mapping[str, Path], *, in_float32: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of the pruned model, one at a time: cut from the base weights, or fitted.

    They are rounded to the dtype of the base weights, or unrounded if `in_float32`.
    Raises InputError for a fitted tensor whose SHA-256 is not the plan's.
    """
    units = UnitTable.of_layers(plan.dense_layers)
    of_family, norms = norms_of(base.shape.family.model_type), {}
    if plan.norm_scales is not None:
        names = of_family.in_order(len(plan.dense_layers))
        norms = {f"{name}.weight": row for name, row in zip(names, plan.norm_scales, strict=True)}
    cut: tuple[int, LayerCut] | None = None
    for name, path in base.files.items():
        stored = getattr(torch, base.shape.dtype_of(name))
        dtype = torch.float32 if in_float32 else stored
        if name in fitted:  # it was stored after the cut
            yield name, fitted_tensor(plan, name, fitted[name], stored).to(dtype)
            continue
        tensor = read_tensor(path, name).to(dtype)
        if name in norms:
            offset = of_family.offset
            tensor = ((tensor.float() + offset) * norms[name] - offset).to(dtype)
        elif name.startswith("model.layers."):
            layer, tail = layer_and_tail(name)
            if cut is None or cut[0] != layer:
                cut = (layer, layer_cut(units, layer, plan.mask, plan.scales))
            if (kept := cut_expert(tail, tensor, cut[1])) is None:
                continue
            name, tensor = f"model.layers.{layer}.{kept[0]}", cut_tensor(tail, kept[1], cut[1])
        yield name, tensor


def fitted_tensor(plan: Plan, name: str, path: Path, dtype: torch.dtype) -> Tensor:
    """Read a fitted tensor in a dtype; InputError if its SHA-256 is not the one in the plan."""
    tensor = read_tensor(path, name).to(dtype)
    if plan.fitted[name] != digest_of(tensor):
        raise InputError(
            f"{name} is not the fitted tensor whose SHA-256 the plan states: compress again"
        )
    return tensor


def layer_and_tail(name: str) -> tuple[int, str]:
    """Layer index, and name within the layer, of a tensor `model.layers.I.TAIL`."""
    _, _, index, tail = name.split(".", 3)
    return int(index), tail


def write_manifest(staging: Path, hashes: dict[str, str]) -> None:
    """Write the SHA-256 of every file; `hashes` by name need not be computed again."""
    others = {path.name: sha256(path) for path in staging.iterdir() if path.name not in hashes}
    write_json(staging / MANIFEST_FILE, {"sha256": dict(sorted((hashes | others).items()))})
