"""Quantise the matrices of a folder's layers by compressed-tensors, into a folder of its own.

Without text no model is loaded: a matrix is read, quantised and written before the next.
Embeddings, output projection, norms and biases stay as they are. vLLM reads the result as it reads
llm-compressor's, and so does transformers where compressed-tensors is installed.
"""

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grasp_deploy.checkpoint.card.model_card import (
    CARD_FILE,
    RENEWED,
    card_metadata,
    intact_plan,
    model_card,
)
from grasp_deploy.checkpoint.format.shapes import ModelShape, dense_shape
from grasp_deploy.checkpoint.limits import refuse_experts
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan
from grasp_deploy.checkpoint.quantised import (
    GROUPS,
    MATRIX,
    eight_bit_bytes,
    four_bit_bytes,
    group_for,
    matrix_columns,
    unlearnt,
)
from grasp_deploy.checkpoint.read.source import INDEX_FILE, unchanged, weight_states
from grasp_deploy.checkpoint.read.validate import StoredModel, read_folder, read_stored_model
from grasp_deploy.checkpoint.write.export import SHARD_BYTES, all_finite, write_manifest
from grasp_deploy.checkpoint.write.rounding import is_rounded, learnt_rounding
from grasp_deploy.checkpoint.write.shards import plan_shards, read_tensor, same_bits
from grasp_deploy.checkpoint.write.sidecar_files import REMOTE_CODE, carry_over
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sha256, write_files
from grasp_deploy.files.json_files import write_json
from grasp_deploy.files.outputs import MANIFEST_FILE, manifest_of, refuse_existing, staged_directory
from grasp_deploy.files.progress import OnCount
from grasp_deploy.files.tensors import file_of

# Shares of a group's largest weight at which clipping is tried.
SHRINKS = tuple(1 - 0.05 * place for place in range(7))
MADE_ANEW = {MANIFEST_FILE, INDEX_FILE, *RENEWED}  # for every copy


class Scheme(NamedTuple):
    """A scheme by the names of compressed-tensors."""

    preset: str
    format: str
    bits: int


SCHEMES = {
    "fp8": Scheme("FP8_DYNAMIC", "float-quantized", 8),
    "int8": Scheme("W8A8", "int-quantized", 8),
    "w4a16": Scheme("W4A16", "pack-quantized", 4),
}


def check_place(model: Path, scheme: str, output: Path, *, overwrite: bool) -> None:
    """Raise InputError if nothing can be written there, or compressed-tensors is absent."""
    if output.exists() and output.resolve() == model.resolve():
        raise InputError(f"{output} is what is quantised: name another folder to write")
    refuse_existing(output, overwrite=overwrite)
    _preset(SCHEMES[scheme], None)


def quantize(
    directory: Path,
    scheme: str,
    output: Path,
    *,
    token_ids: Tensor | None = None,
    text: str = "",
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
    on_progress: OnCount = lambda done, total: None,
) -> ModelShape:
    """Write a quantised copy of a folder, pruned or dense; returns its shape.

    The rounding of 4-bit weights is learnt on `token_ids` `(n, T)`, if there are any, which the
    card calls `text`. The output appears whole or not at all. Raises InputError for a folder that
    is damaged or quantised already, columns that no group divides, and where compressed-tensors or
    AutoRound is absent.
    """
    check_place(directory, scheme, output, overwrite=overwrite)
    states = weight_states(directory)
    model, chosen = read_stored_model(directory), SCHEMES[scheme]
    has_plan = (directory / PLAN_FILE).exists()
    plan = intact_plan(directory, may_lack=[*REMOTE_CODE]) if has_plan else None
    refuse_experts(model.shape, "quantize", hybrid=True)
    group = _group(model.shape, plan) if chosen.bits == 4 else None
    preset, learnt = _preset(chosen, group), {}
    size_bytes = four_bit_bytes(model.shape, group) if group else eight_bit_bytes(model.shape)
    staged = staged_directory(output, overwrite=overwrite, size_bytes=size_bytes)
    with staged as staging, unchanged(states):
        code = REMOTE_CODE if model.shape.pruned else {}  # that `auto_map` names
        for name, path in (_beside(model) if plan else code).items():
            shutil.copyfile(path, staging / name)
        write_json(staging / "config.json", _config(model, preset, chosen))
        if plan is None:
            carry_over(staging, directory)
        if token_ids is not None:
            for _ in all_finite((n, read_tensor(path, n)) for n, path in model.files.items()):
                pass  # raises for damaged weights before hours of learning
            assert group is not None, "text is for 4-bit weights"
            learnt = learnt_rounding(directory, model.shape.dtype, group, token_ids)
        made = _quantised(model, chosen, preset, on_progress, learnt)
        _write_weights(staging, model.shape, made, shard_bytes)
        written = read_folder(staging).shape
        if plan is not None:
            how = f"{scheme}, its rounding learnt on {text} by AutoRound" if learnt else scheme
            if learnt and (left := unlearnt(model.shape)):
                how += f", {left} of the matrices excepted"
            made_of = card_metadata(directory) | {"quantised_by": how}
            card = model_card(plan, dense_shape(model.config), written, from_base=made_of)
            (staging / CARD_FILE).write_text(card, encoding="utf-8")
        write_manifest(staging, {})
    return written


def difference(directory: Path, plain: Path) -> tuple[str, int]:
    """The first file or tensor in which a folder differs from a quantised copy of `plain`, or "".

    Also the number of matrices that differ only as learnt rounding may, by a step at most.
    Raises InputError for folders that are damaged, and for a scheme that `quantize` does not have.
    """
    stored, model = read_folder(directory), read_stored_model(plain)
    stated = stored.config["quantization_config"].get("format")
    chosen = next((scheme for scheme in SCHEMES.values() if scheme.format == stated), None)
    if chosen is None:
        raise InputError(f"{directory} was quantised as {stated!r:.60}, which is none of ours")
    group, columns = stored.shape.group_columns or None, matrix_columns(model.shape).values()
    if group is not None and (group not in GROUPS or any(count % group for count in columns)):
        return "config.json", 0
    preset, left, rounded = _preset(chosen, group), dict(stored.files), 0
    if stored.config != _config(model, preset, chosen):
        return "config.json", 0
    beside, own = _beside(model), MADE_ANEW | {path.name for path in stored.files.values()}
    if odd := sorted((manifest_of(directory).keys() - own) ^ beside.keys()):
        return odd[0], 0
    for name, path in beside.items():
        there = directory / name
        same = sha256(there) == sha256(path) if there.is_file() else name in REMOTE_CODE
        if name != "config.json" and not same:
            return name, 0
    for made in _quantised(model, chosen, preset, lambda done, total: None, {}):
        found = {name: read_tensor(left.pop(name), name) for name in made if name in left}
        other = next((n for n in made if n not in found or not same_bits(found[n], made[n])), None)
        if other is None:
            continue
        matrix = f"{other.rpartition('.')[0]}.weight"
        if not is_rounded(found, made, read_tensor(model.files[matrix], matrix)):
            return other, 0
        rounded += 1
    return min(left, default=""), rounded


def _group(shape: ModelShape, plan: Plan | None) -> int:
    """Columns that share a scale of 4-bit weights; InputError where no group divides them."""
    workers = plan.provenance["config"].get("tensor_parallel", 1) if plan else 1
    group = group_for(shape, workers)
    if group is None:
        columns = matrix_columns(shape)
        odd = next(name for name, count in columns.items() if count % GROUPS[-1])
        cut = f"compress with --ffn-multiple {GROUPS[-1]}, or " if "down_proj" in odd else ""
        raise InputError(
            f"{odd} has {columns[odd]:,} columns, and 4-bit weights share scales by "
            f"{GROUPS[-1]}: {cut}take --scheme int8"
        )
    return group


def _preset(scheme: Scheme, group: int | None) -> Any:
    """compressed-tensors' scheme, with so many columns to a scale of 4-bit weights."""
    try:
        from compressed_tensors.quantization import preset_name_to_scheme
    except ImportError:
        raise InputError(
            "quantising needs compressed-tensors, which comes with vLLM: pip install "
            "compressed-tensors"
        ) from None
    preset = preset_name_to_scheme(scheme.preset, ["Linear"])
    if group is not None:
        preset.weights.group_size = group
    return preset


def _config(model: StoredModel, preset: Any, scheme: Scheme) -> dict[str, Any]:
    """config.json of the copy, with the tensors' own dtype: vLLM computes in the one stated."""
    from compressed_tensors.quantization import QuantizationConfig

    config = QuantizationConfig(
        config_groups={"group_0": preset},
        format=scheme.format,
        quantization_status="compressed",
        ignore=["lm_head"],
    )
    left_out = ["torch_dtype"] if model.shape.pruned else ["torch_dtype", "auto_map"]  # of code
    kept = {key: value for key, value in model.config.items() if key not in left_out}
    return kept | {"dtype": model.shape.dtype, "quantization_config": config.to_dict()}


def _beside(model: StoredModel) -> dict[str, Path]:
    """A checkpoint's files to copy beside the weights, by name; not card and quality record.

    This release's remote code takes the place of what was not fetched from the hub.
    """
    names = manifest_of(model.directory).keys() - MADE_ANEW
    weights = {path.name for path in model.files.values()}
    found = {name: model.directory / name for name in sorted(names - weights)}
    return {n: path if path.exists() else REMOTE_CODE.get(n, path) for n, path in found.items()}


def _quantised(
    model: StoredModel,
    scheme: Scheme,
    preset: Any,
    on_progress: OnCount,
    learnt: dict[str, tuple[Tensor, Tensor]],
) -> Iterator[dict[str, Tensor]]:
    """For each tensor of a model, the tensors by name that take its place."""
    from compressed_tensors.compressors.base import BaseCompressor

    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    tensors = all_finite((name, read_tensor(path, name)) for name, path in model.files.items())
    for done, (name, tensor) in enumerate(tensors, start=1):
        if name.endswith(MATRIX):
            module = name.removesuffix("weight")
            parts = {"weight": tensor, **_scales(tensor, preset)}
            if name in learnt:
                parts["weight"], parts["weight_scale"] = learnt[name]
            made = compressor.compress(parts, preset)
            yield {f"{module}{part}": made[part] for part in sorted(made)}
        else:
            yield {name: tensor}
        on_progress(done, len(model.files))


def _scales(weight: Tensor, preset: Any) -> dict[str, Tensor]:
    """Scale and zero point of each row, or of each group of a row's columns.

    A group clips its largest weights where that lowers its squared error.
    """
    from compressed_tensors.quantization.utils import calculate_qparams

    size, exact = preset.weights.group_size, weight.float()
    if not size:
        ends = exact.amin(1, keepdim=True), exact.amax(1, keepdim=True)
        scale, zero = calculate_qparams(*ends, preset.weights)
        return {"weight_scale": _above_zero(scale, weight.dtype), "weight_zero_point": zero}
    grouped = exact.unflatten(1, (-1, size))  # (rows, groups, columns)
    most = 2 ** (preset.weights.num_bits - 1)
    best = torch.full(grouped.shape[:2], torch.inf)
    chosen = torch.zeros_like(best)
    for shrink in SHRINKS:
        ends = shrink * grouped.amin(-1), shrink * grouped.amax(-1)
        scale = _above_zero(calculate_qparams(*ends, preset.weights)[0], weight.dtype).float()
        steps = (grouped / scale[..., None]).round().clamp(-most, most - 1)
        error = (steps * scale[..., None] - grouped).square().sum(-1)
        chosen = torch.where(error < best, scale, chosen)
        best = torch.minimum(error, best)
    zeros = torch.zeros_like(chosen, dtype=torch.int8)
    return {"weight_scale": chosen.to(weight.dtype), "weight_zero_point": zeros}


def _above_zero(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Scales in a dtype, raised above 0 so that a row of tiny weights can be divided by them."""
    return scale.to(dtype).clamp(min=torch.finfo(dtype).smallest_normal)


def _write_weights(
    staging: Path, shape: ModelShape, tensors: Iterator[dict[str, Tensor]], shard_bytes: int
) -> None:
    """Write what takes each tensor's place into shards, one in memory at a time, and their index.

    A shard takes the place of one of the plain model's.
    """
    places, total = dict[str, str](), 0
    for file_name, names in plan_shards(shape, shard_bytes).items():
        held = {name: t for made in islice(tensors, len(names)) for name, t in made.items()}
        write_files({staging / file_name: file_of(held, {"format": "pt"})})
        places |= dict.fromkeys(held, file_name)
        total += sum(tensor.nbytes for tensor in held.values())
    write_json(staging / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": places})
