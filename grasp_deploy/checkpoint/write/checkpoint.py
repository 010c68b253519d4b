"""Plan + base weights -> the pruned checkpoint: a dense Hugging Face folder, stock tensor names.

The writer streams: a tensor is read from the base model, cut, and written before the next is read.
Fitted tensors come ready-made instead. The same plan and weights give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from grasp_deploy.checkpoint.card.model_card import model_card
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, check_hashes, pruned_shape
from grasp_deploy.checkpoint.read.source import weight_hash
from grasp_deploy.checkpoint.read.validate import StoredModel, TensorEntry
from grasp_deploy.checkpoint.write.shards import (
    TensorLayout,
    read_tensor,
    torch_dtype,
    write_shards,
)
from grasp_deploy.checkpoint.write.sidecar_files import pruned_config, write_sidecar_files
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sha256
from grasp_deploy.files.json_files import write_json
from grasp_deploy.files.outputs import MANIFEST_FILE, staged_directory
from grasp_deploy.files.progress import OnCount
from grasp_deploy.pruning.slicing import LayerCut, cut_tensor, layer_cut
from grasp_deploy.pruning.units import UnitTable

SHARD_BYTES = 4_000_000_000


def write_checkpoint(
    plan: Plan,
    base: StoredModel,
    output: Path,
    *,
    fitted: Mapping[str, TensorEntry],
    check_base: bool = False,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    beside: Mapping[str, str] | None = None,
    on_progress: OnCount = lambda done, total: None,
) -> ModelShape:
    """Write the checkpoint that a plan makes of a base model; returns its shape.

    `fitted` locates the plan's fitted tensors. `check_base` compares the SHA-256 of the base
    weights with the plan's while they are read, for a caller that has not. `beside` maps names of
    more text files to their contents. The output appears whole or not at all. Raises InputError if
    the base weights are not the plan's, or the output exists.
    """
    assert sorted(fitted) == sorted(plan.fitted), "the plan names other fitted tensors"
    if output.exists() and output.resolve() == base.directory.resolve():
        raise InputError(f"the output {output} is the base model's folder: name another one")
    pruned = pruned_shape(plan, base.shape)
    layouts = {
        name: TensorLayout(torch_dtype(base.entries[name].dtype), shape)
        for name, shape in pruned.tensor_shapes().items()
    }
    with staged_directory(output, overwrite=overwrite) as staging, _Hashing() as base_hashes:
        tensors = cut_tensors(plan, base, list(layouts), fitted)
        if check_base:
            tensors = base_hashes.beside(tensors, base.entries)
        hashes = {}
        written = 0
        for file, digest in write_shards(staging, layouts, tensors, shard_bytes):
            if digest is not None:
                hashes[file] = digest
                continue
            written += 1
            on_progress(written, len(layouts))
        if check_base:
            check_hashes(plan, base_hashes.of_all(base.directory))
        write_sidecar_files(staging, base.directory, plan, pruned_config(base.config, pruned))
        plan.save(staging / PLAN_FILE)
        for name, text in (beside or {}).items():
            (staging / name).write_text(text, encoding="utf-8")
        card = model_card(plan, base.shape, pruned)
        (staging / "README.md").write_text(card, encoding="utf-8")
        _write_manifest(staging, hashes)
    return pruned


def cut_tensors(
    plan: Plan,
    base: StoredModel,
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
        entry = base.entries[name]
        tensor = read_tensor((fitted.get(name) or entry).path, name)
        tensor = tensor.to(torch.float32 if in_float32 else torch_dtype(entry.dtype))
        if name.startswith("model.layers.") and name not in fitted:  # fitted ones are cut already
            layer, tail = layer_and_tail(name)
            if cut is None or cut[0] != layer:
                group, width = base.shape.query_heads_per_group, base.shape.head_dim
                cut = (layer, layer_cut(units, layer, plan.mask, plan.scales, group, width))
            tensor = cut_tensor(tail, tensor, cut[1])
        yield name, tensor


def layer_and_tail(name: str) -> tuple[int, str]:
    """Layer index, and name within the layer, of a tensor `model.layers.I.TAIL`."""
    _, _, index, tail = name.split(".", 3)
    return int(index), tail


class _Hashing:
    """SHA-256 of weight files, taken by a thread while the main thread reads the same files."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._pending: dict[Path, Future[str]] = {}

    def __enter__(self) -> _Hashing:
        return self

    def __exit__(self, *_: type | BaseException | TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)

    def beside(
        self, tensors: Iterable[tuple[str, Tensor]], entries: Mapping[str, TensorEntry]
    ) -> Iterator[tuple[str, Tensor]]:
        """Pass tensors through, and begin to hash a file when its first tensor has been read."""
        for name, tensor in tensors:
            self._begin(entries[name].path)
            yield name, tensor

    def of_all(self, directory: Path) -> dict[str, str]:
        paths = sorted(directory.glob("*.safetensors"))
        for path in paths:
            self._begin(path)
        return {path.name: self._pending[path].result() for path in paths}

    def _begin(self, path: Path) -> None:
        if path not in self._pending:
            self._pending[path] = self._thread.submit(weight_hash, path)


def _write_manifest(staging: Path, hashes: dict[str, str]) -> None:
    """Write the SHA-256 of every file; those of the weights were taken while writing."""
    others = {path.name: sha256(path) for path in staging.iterdir() if path.name not in hashes}
    write_json(staging / MANIFEST_FILE, {"sha256": dict(sorted((hashes | others).items()))})
