"""Tensors with a JSON record as one safetensors file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import kind_of, write_files
from grasp_deploy.files.json_files import parse_json

RECORD_KEY = "grasp_deploy"  # of the file's metadata


def write_tensors(path: Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Replace a file of tensors and a JSON record in one move; equal input gives equal bytes."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_files({path: save(contiguous, {RECORD_KEY: json.dumps(record, allow_nan=False)})})


def checksum(tensors: dict[str, Tensor], text: str) -> str:
    """SHA-256 of a text and of the tensors' names, dtypes, shapes and bytes."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        data = tensor.detach().cpu().contiguous().flatten()
        digest.update(data.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_tensors(
    path: Path, remedy: str = "fetch it again"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and record (empty if absent) of a file; InputError with `remedy` if damaged."""
    try:
        if kind_of(path) == "special":
            raise ValueError("it is a pipe or a device")
        with safe_open(path, "pt") as file:
            record = parse_json((file.metadata() or {}).get(RECORD_KEY, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: {remedy}") from None
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from None
    return tensors, record if isinstance(record, dict) else {}
