"""Safetensors files written without a copy of what they hold, and those with a JSON record.

The library's `save` copies all tensors twice, and its `save_file` makes files that nobody else may
read. The format is simple: the length of a JSON header, the header with each tensor's dtype, shape
and offsets, then the bytes.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import kind_of, write_files

RECORD_KEY = "grasp_deploy"  # of the file's metadata
CODES = {  # of the dtypes that our own files hold
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.bool: "BOOL",
}


def header_of(
    layout: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str]
) -> bytes:
    """The header of a safetensors file, for tensors of these dtypes and shapes in this order."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, (dtype, shape) in layout.items():
        end = offset + math.prod(shape) * dtype.itemsize
        entries[name] = {
            "dtype": CODES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data starts on a multiple of 8
    return len(text).to_bytes(8, "little") + text


def file_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """The header and bodies of a safetensors file, wide dtypes first so that each is aligned."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    present = {name: tensor.cpu().contiguous() for name, tensor in ordered}
    layout = {name: (tensor.dtype, tensor.shape) for name, tensor in present.items()}
    return [header_of(layout, metadata), *map(bytes_of, present.values())]


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in the CPU's memory, not a copy of them."""
    return tensor.detach().flatten().view(torch.uint8).numpy().data


def digest_of(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes, as a file holds them."""
    return hashlib.sha256(bytes_of(tensor.cpu().contiguous())).hexdigest()


def write_tensors(path: Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Replace a file of tensors and a JSON record in one move; equal input gives equal bytes."""
    metadata = {RECORD_KEY: json.dumps(record, allow_nan=False)}
    write_files({path: file_of(dict(sorted(tensors.items())), metadata)})


def checksum(tensors: dict[str, Tensor], text: str) -> str:
    """SHA-256 of a text and of the tensors' names, dtypes, shapes and bytes."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(bytes_of(tensor.cpu().contiguous()))
    return digest.hexdigest()


def read_tensors(
    path: Path, remedy: str = "fetch it again", *, record_alone: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and record (empty if absent) of a file; InputError with `remedy` if damaged.

    With `record_alone` no tensor is read.
    """
    try:
        if kind_of(path) == "special":
            raise ValueError("it is a pipe or a device")
        with safe_open(path, "pt") as file:
            record = msgspec.json.decode((file.metadata() or {}).get(RECORD_KEY, "{}"))
            names = () if record_alone else file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: {remedy}") from None
    except (OSError, RuntimeError, SafetensorError, ValueError) as error:  # also of recursion
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from None
    return tensors, record if isinstance(record, dict) else {}
