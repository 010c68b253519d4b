"""Checks of a model folder: its files, and its tensors against its config.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open

from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import read_json, typed

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLES = ("pytorch_model*.bin", "consolidated*.pth", "*.pt")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies and what its file's header says of it; dtype as "BF16", "F32", "F16"."""

    path: Path
    dtype: str
    shape: tuple[int, ...]


class ShardIndex(msgspec.Struct):
    """What an index of shards must hold."""

    weight_map: dict[str, str]  # file by tensor name
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True)
class StoredModel:
    """A model folder as read once: its config, its shape and where its tensors lie.

    The dtype of `shape` is the tensors' own; the config may name another one.
    """

    directory: Path
    config: dict[str, Any]
    shape: ModelShape
    entries: dict[str, TensorEntry]


def read_stored_model(directory: Path) -> StoredModel:
    """Read the config.json and all weight headers of a folder, and compare them.

    Raises InputError for whatever is missing, damaged or contradictory.
    """
    config = read_config(directory)
    shape = model_shape(config)
    entries = check_weights(directory, shape)
    return StoredModel(directory, config, replace(shape, dtype=stored_dtype(entries)), entries)


def check_checkpoint(directory: Path) -> ModelShape:
    """The shape that the config.json of a folder states, if its weights agree with it.

    Reads headers only. Raises InputError for whatever is missing, damaged or contradictory.
    """
    model = read_stored_model(directory)
    stated = model_shape(model.config)
    if stated.pruned and model.shape.dtype != stated.dtype:
        raise InputError(
            f"{directory / 'config.json'} says {stated.dtype} and the tensors are "
            f"{model.shape.dtype}: one of them was replaced; export the checkpoint again"
        )
    return stated


def check_tokenizer(directory: Path) -> None:
    """InputError if the folder holds no tokenizer."""
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(
            f"{directory} holds no tokenizer ({', '.join(TOKENIZER_FILES)}): "
            "copy the tokenizer files of the base model into it"
        )


def check_weights(directory: Path, shape: ModelShape) -> dict[str, TensorEntry]:
    """Every tensor of the model by name, after comparing all of them with config.json.

    Reads headers only. Buffers that older checkpoints carry along, and a second copy of tied
    embeddings, are left out. The dtype is the tensors' own, whatever config.json says; see
    `stored_dtype`.

    Raises InputError for damaged files, and for missing, unexpected or contradicting tensors.
    """
    found = _stored_tensors(directory)
    expected = shape.tensor_shapes()
    missing = [name for name in expected if name not in found]
    if missing:
        raise InputError(
            f"{directory} lacks {listed(missing)}, which its config.json asks for: "
            "fetch the model again"
        )
    surplus = [name for name in found if name not in expected and not _ignored(name, shape)]
    if surplus:
        raise InputError(
            f"{directory} holds {listed(surplus)}, which its config.json does not know: "
            "the two do not belong together; fetch the model again"
        )
    for name, size in expected.items():
        if found[name].shape != size:
            raise InputError(
                f"{name} has the shape {found[name].shape} in {found[name].path} and {size} by "
                "config.json: the two do not belong together; fetch the model again"
            )
    entries = {name: found[name] for name in expected}
    stored_dtype(entries)
    return entries


def stored_dtype(entries: Mapping[str, TensorEntry]) -> str:
    """The one dtype that all tensors have, such as "bfloat16".

    config.json may name another one (hub models do), and the tensors are right.

    Raises InputError for tensors that are no plain floats, or that differ in dtype.
    """
    first_name, first = next(iter(entries.items()))
    for name, entry in entries.items():
        if entry.dtype not in DTYPE_NAMES:
            raise InputError(
                f"{name} in {entry.path} is {entry.dtype}: take a model in "
                f"{', '.join(DTYPE_NAMES.values())} that is not quantised"
            )
        if entry.dtype != first.dtype:
            raise InputError(
                f"{first_name} is {DTYPE_NAMES[first.dtype]} and {name} is "
                f"{DTYPE_NAMES[entry.dtype]}: save the model in one dtype first, with "
                f'from_pretrained("{entry.path.parent}", dtype=...).save_pretrained(...)'
            )
    return DTYPE_NAMES[first.dtype]


def weight_files(directory: Path) -> dict[str, Path]:
    """The safetensors file of each tensor, from the index or from the only file's header.

    Raises InputError if there are no weights, only pickled ones, or the index is wrong.
    """
    if (directory / WEIGHTS_FILE).is_file():
        return dict.fromkeys(_header(directory / WEIGHTS_FILE), directory / WEIGHTS_FILE)
    if (directory / INDEX_FILE).is_file():
        return _indexed_files(directory / INDEX_FILE)
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


def _stored_tensors(directory: Path) -> dict[str, TensorEntry]:
    files = weight_files(directory)
    headers = {path: _header(path) for path in sorted(set(files.values()))}
    for name, path in files.items():
        if name not in headers[path]:
            raise InputError(
                f"{directory / INDEX_FILE} says that {path.name} holds {name}, and it does not: "
                "fetch the model again"
            )
    return {name: entry for header in headers.values() for name, entry in header.items()}


def _indexed_files(index: Path) -> dict[str, Path]:
    remedy = "fetch the model again"
    record = typed(read_json(index, remedy), ShardIndex, index, remedy)
    weight_map = record.weight_map
    if not weight_map or any(Path(file).name != file for file in weight_map.values()):
        raise InputError(f"{index} maps no tensors to files beside it: fetch the model again")
    if record.metadata is None:
        raise InputError(
            f'{index} has no "metadata", and without it transformers loads no model: write '
            '"metadata": {} into it, or fetch the model again'
        )
    absent = sorted({file for file in weight_map.values() if not (index.parent / file).is_file()})
    if absent:
        raise InputError(f"{index} names {listed(absent)}, and there is no such file: fetch it")
    return {name: index.parent / file for name, file in weight_map.items()}


def _header(path: Path) -> dict[str, TensorEntry]:
    """The entries of a file's header; safetensors itself compares them with the file's length."""
    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            return {
                name: TensorEntry(path, tensor.get_dtype(), tuple(tensor.get_shape()))
                for name, tensor in slices.items()
            }
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
