"""Checks that a model folder is whole: its files, and its tensors against its config.json."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open

from grasp_deploy.checkpoint.format.shapes import DTYPES, ModelShape, model_shape, read_config
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import read_json, typed

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLES = ("pytorch_model*.bin", "consolidated*.pth", "*.pt")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
DTYPE_OF_CODE = {code: dtype for dtype, code in DTYPES.items()}
APART = "the two do not belong together; fetch the model again"


@dataclass(frozen=True)
class StoredModel:
    """A model folder as read once: its config, its shape and the file of each tensor.

    The dtype of `shape` is the tensors' own; the config of a hub model may name another one.
    """

    directory: Path
    config: dict[str, Any]
    shape: ModelShape
    files: dict[str, Path]


@dataclass(frozen=True)
class StoredTensor:
    """The entry of a tensor in a file's header."""

    path: Path
    dtype: str  # "bfloat16", or the code of one that cannot be pruned, such as "I8"
    shape: tuple[int, ...]

    @classmethod
    def of(cls, path: Path, tensor: Any) -> StoredTensor:
        """From a slice of an open safetensors file."""
        code = tensor.get_dtype()
        return cls(path, DTYPE_OF_CODE.get(code, code), tuple(tensor.get_shape()))


class ShardIndex(msgspec.Struct):
    """The required keys of an index of shards; transformers loads none without metadata."""

    weight_map: dict[str, str]  # file by tensor name
    metadata: dict[str, Any]


def read_stored_model(directory: Path) -> StoredModel:
    """Read and compare a folder's config.json and weight headers.

    Buffers that older checkpoints carry along, and a second copy of tied embeddings, are left out.
    Raises InputError for damaged files, and for tensors or dtypes that do not fit the config.
    """
    config = read_config(directory)
    shape = model_shape(config)
    tensors = _stored_tensors(directory)
    expected = shape.tensor_shapes()
    if missing := [name for name in expected if name not in tensors]:
        raise InputError(
            f"{directory} lacks {listed(missing)}, which its config.json asks for: "
            "fetch the model again"
        )
    surplus = [name for name in tensors if name not in expected and not _ignored(name, shape)]
    if surplus:
        raise InputError(
            f"{directory} holds {listed(surplus)}, which its config.json does not know: {APART}"
        )
    for name, size in expected.items():
        if tensors[name].shape != size:
            raise InputError(
                f"{name} has the shape {tensors[name].shape} in {tensors[name].path} and {size} by "
                f"config.json: {APART}"
            )
    dtype = _common_dtype({name: tensors[name] for name in expected})
    if shape.pruned and dtype != shape.dtype:
        raise InputError(
            f"{directory / 'config.json'} says {shape.dtype} and the tensors are {dtype}: one of "
            "them was replaced; export the checkpoint again"
        )
    files = {name: tensors[name].path for name in expected}
    return StoredModel(directory, config, replace(shape, dtype=dtype), files)


def check_tokenizer(directory: Path) -> None:
    """InputError if the folder holds no tokenizer."""
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(
            f"{directory} holds no tokenizer ({', '.join(TOKENIZER_FILES)}): "
            "copy the tokenizer files of the base model into it"
        )


def _common_dtype(tensors: dict[str, StoredTensor]) -> str:
    first, *_ = tensors
    dtype = tensors[first].dtype
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise InputError(
                f"{name} in {tensor.path} is {tensor.dtype}: take a model in {', '.join(DTYPES)} "
                "that is not quantised"
            )
        if tensor.dtype != dtype:
            raise InputError(
                f"{first} is {dtype} and {name} is {tensor.dtype}: save the model in one dtype "
                f'first, with from_pretrained("{tensor.path.parent}", dtype=...)'
                ".save_pretrained(...)"
            )
    return dtype


def _stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder's weight files; InputError for pickled weights or none."""
    if (directory / WEIGHTS_FILE).is_file():
        return _header(directory / WEIGHTS_FILE)
    if (directory / INDEX_FILE).is_file():
        files = _indexed_files(directory / INDEX_FILE)
        return {name: tensor for path in files for name, tensor in _header(path).items()}
    pickles = sorted({path.name for pattern in PICKLES for path in directory.glob(pattern)})
    if pickles:
        raise InputError(
            f"{directory} has its weights only as pickle ({listed(pickles)}), which can run code: "
            f'convert them where you trust them, with transformers: from_pretrained("{directory}")'
            ".save_pretrained(...) writes safetensors"
        )
    raise InputError(
        f"{directory} holds no weights ({WEIGHTS_FILE} or {INDEX_FILE}): fetch the model again"
    )


def _indexed_files(index: Path) -> list[Path]:
    remedy = "fetch the model again"
    names = sorted(
        set(typed(read_json(index, remedy), ShardIndex, index, remedy).weight_map.values())
    )
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise InputError(f"{index} names {name!r:.80}, which is not a file beside it: {remedy}")
    return [index.parent / name for name in names]


def _header(path: Path) -> dict[str, StoredTensor]:
    """The entries of a file's header; safetensors itself compares them with the file's length."""
    try:
        with safe_open(path, "np") as file:
            tensors = {name: file.get_slice(name) for name in file.offset_keys()}
            return {name: StoredTensor.of(path, tensor) for name, tensor in tensors.items()}
    except (SafetensorError, OSError) as error:
        with path.open("rb") as file:
            start = file.read(32)
        if start.startswith(b"version https://git-lfs"):
            raise InputError(
                f"{path} is a Git LFS pointer, not the weights: run `git lfs pull` in its folder"
            ) from None
        raise InputError(
            f"{path} is cut short or damaged ({error}): fetch the file again"
        ) from None


def _ignored(name: str, shape: ModelShape) -> bool:
    tied_copy = shape.tied_embeddings and name == "lm_head.weight"
    return tied_copy or name.endswith("rotary_emb.inv_freq")


def listed(names: Iterable[str]) -> str:
    """The first three names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
