"""Writing safetensors shards tensor by tensor, so that memory holds one tensor and not one shard.

The safetensors library writes a file from tensors that are all in memory. The format is simple: the
length of a JSON header, the header with each tensor's dtype, shape and offsets, then the bytes. The
shapes of a checkpoint are known before its first tensor is cut, so the header can go first.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from grasp_deploy.checkpoint.read.validate import INDEX_FILE, WEIGHTS_FILE

PIECE_BYTES = 2**20  # of a write; hundreds of MiB at once took Linux several times as long
CODES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True)
class TensorLayout:
    """The entry of a tensor in a file's header."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def plan_shards(layouts: Mapping[str, TensorLayout], shard_bytes: int) -> dict[str, list[str]]:
    """Tensor names of each shard, by file name, in order; a tensor is never divided."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, layout in layouts.items():
        if groups[-1] and filled + layout.size_bytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += layout.size_bytes
    if len(groups) == 1:
        return {WEIGHTS_FILE: groups[0]}
    total = len(groups)
    return {f"model-{i:05d}-of-{total:05d}.safetensors": g for i, g in enumerate(groups, start=1)}


def write_shards(
    directory: Path,
    layouts: Mapping[str, TensorLayout],
    tensors: Iterable[tuple[str, Tensor]],
    shard_bytes: int,
) -> Iterator[tuple[str, str | None]]:
    """Write tensors, which come in the order of `layouts`, and the index of the shards.

    Yields `(file name, None)` after each tensor and `(file name, SHA-256)` after each file.
    """
    shards = plan_shards(layouts, shard_bytes)
    incoming = iter(tensors)
    with ThreadPoolExecutor(1) as hasher:
        for file_name, names in shards.items():
            digest = hashlib.sha256()
            hashed: Future[None] | None = None
            with (directory / file_name).open("wb") as file:
                header = _header({name: layouts[name] for name in names})
                digest.update(header)
                file.write(header)
                for expected in names:
                    name, tensor = next(incoming)
                    layout = TensorLayout(tensor.dtype, tuple(tensor.shape))
                    assert (name, layout) == (expected, layouts[expected]), (name, expected)
                    data = tensor.contiguous().view(torch.uint8).numpy().data.cast("B")
                    if hashed is not None:
                        hashed.result()  # so that no more than one tensor waits in memory
                    hashed = hasher.submit(digest.update, data)
                    for start in range(0, len(data), PIECE_BYTES):
                        file.write(data[start : start + PIECE_BYTES])
                    yield file_name, None
                if hashed is not None:
                    hashed.result()
            yield file_name, digest.hexdigest()
    # Also for a single shard: without an index vLLM would load every .safetensors file beside it,
    # the plan included.
    files = {name: file for file, names in shards.items() for name in names}
    index = (json.dumps(index_of(files, layouts), indent=2) + "\n").encode()
    (directory / INDEX_FILE).write_bytes(index)
    yield INDEX_FILE, hashlib.sha256(index).hexdigest()


def read_tensor(path: Path, name: str) -> Tensor:
    """One tensor of a safetensors file; nothing else of the file stays mapped."""
    with safe_open(path, "pt") as file:
        return file.get_tensor(name)


def torch_dtype(code: str) -> torch.dtype:
    """The dtype that a file's header calls "BF16", "F32" or "F16"."""
    return next(dtype for dtype, known in CODES.items() if known == code)


def _header(layouts: Mapping[str, TensorLayout]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, layout in layouts.items():
        end = offset + layout.size_bytes
        entries[name] = {
            "dtype": CODES[layout.dtype],
            "shape": list(layout.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data starts on a multiple of 8
    return len(text).to_bytes(8, "little") + text


def index_of(files: Mapping[str, str], layouts: Mapping[str, TensorLayout]) -> dict[str, Any]:
    """The index of tensors in these files."""
    return {
        "metadata": {"total_size": sum(layout.size_bytes for layout in layouts.values())},
        "weight_map": dict(files),
    }
