"""Writing safetensors shards tensor by tensor, so that memory holds one tensor and not one shard.

The safetensors library writes a file from tensors that are all in memory. The shapes of a
checkpoint are known before its first tensor is cut, so the file's header can go first.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from grasp_deploy.checkpoint.format.families import stored_name
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.read.source import INDEX_FILE, WEIGHTS_FILE
from grasp_deploy.files.disk import write_pieces
from grasp_deploy.files.json_files import as_json
from grasp_deploy.files.progress import OnCount
from grasp_deploy.files.tensors import bytes_of, header_of


def plan_shards(shape: ModelShape, shard_bytes: int) -> dict[str, list[str]]:
    """Tensor names of each shard, by file name, in order; a tensor is never divided."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, sizes in shape.tensor_shapes().items():
        size_bytes = math.prod(sizes) * shape.bytes_per_parameter
        if groups[-1] and filled + size_bytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size_bytes
    if len(groups) == 1:
        return {WEIGHTS_FILE: groups[0]}
    total = len(groups)
    return {f"model-{i:05d}-of-{total:05d}.safetensors": g for i, g in enumerate(groups, start=1)}


def write_shards(
    directory: Path,
    shape: ModelShape,
    tensors: Iterable[tuple[str, Tensor]],
    shard_bytes: int,
    on_progress: OnCount = lambda done, total: None,
) -> dict[str, str]:
    """Write the tensors of a model, in the order of its shape, and the index of the shards.

    Returns the SHA-256 of each file by its name, computed in a thread while the next tensor comes.
    """
    shards, sizes = plan_shards(shape, shard_bytes), shape.tensor_shapes()
    incoming, hashes = enumerate(tensors, start=1), {}
    with ThreadPoolExecutor(1) as thread:
        for file_name, names in shards.items():
            with (directory / file_name).open("wb") as file:
                layout = {n: (getattr(torch, shape.dtype_of(n)), sizes[n]) for n in names}
                header = header_of(layout, {"format": "pt"})
                digest = hashlib.sha256()
                file.write(header)
                hashed = thread.submit(digest.update, header)
                for expected in names:
                    done, (name, tensor) = next(incoming)
                    found = (name, (tensor.dtype, tuple(tensor.shape)))
                    assert found == (expected, layout[expected]), found
                    data = bytes_of(tensor.contiguous())
                    hashed.result()  # so that no more than one tensor waits in memory
                    hashed = thread.submit(digest.update, data)
                    write_pieces(file, data)
                    on_progress(done, len(sizes))
                hashed.result()
            hashes[file_name] = digest.hexdigest()
    # Even a single shard gets an index: without one vLLM would load any .safetensors file that is
    # later put beside it.
    files = {name: file for file, names in shards.items() for name in names}
    index = as_json(index_of(files, shape)).encode()
    (directory / INDEX_FILE).write_bytes(index)
    return {**hashes, INDEX_FILE: hashlib.sha256(index).hexdigest()}


def read_tensor(path: Path, name: str) -> Tensor:
    """One tensor of a safetensors file; nothing else of the file stays mapped."""
    with safe_open(path, "pt") as file:
        return file.get_tensor(stored_name(name, file.keys()))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """True for tensors of one dtype and shape with the same bits; -0.0 is not 0.0."""
    bits = (tensor.contiguous().view(torch.uint8) for tensor in (one, other))
    return one.dtype == other.dtype and torch.equal(*bits)


def index_of(files: Mapping[str, str], shape: ModelShape) -> dict[str, Any]:
    """The index that says which file each tensor of a model is in."""
    return {"metadata": {"total_size": shape.weight_bytes}, "weight_map": dict(files)}
