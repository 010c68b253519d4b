"""Checks that a model folder is whole: its files, and its tensors against its config.json."""

import logging
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from grasp_deploy.checkpoint.format.families import IN_WHOLE, stored_name
from grasp_deploy.checkpoint.format.layer_kinds import MAYBE_FLOAT32
from grasp_deploy.checkpoint.format.shapes import DTYPES, ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.read.source import INDEX_FILE, QUANTIZATION_FILE, listed, weight_files
from grasp_deploy.errors import InputError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
DTYPE_OF_CODE = {code: dtype for dtype, code in DTYPES.items()}
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
APART = "the two do not belong together; fetch the model again"
logger = logging.getLogger(__name__)
note_once = cache(logger.warning)


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


def read_stored_model(directory: Path) -> StoredModel:
    """Read a folder whose weights are to be cut, learnt or compared; InputError for quantised ones.

    Otherwise as `read_folder`.
    """
    model = read_folder(directory)
    refuse_quantised(model.shape)
    return model


def refuse_quantised(shape: ModelShape) -> None:
    """Raise InputError for a model whose weights were quantised."""
    if shape.quantization is not None:
        raise InputError(
            f"the model is quantised ({shape.quantization}), and this wants plain weights: "
            "take the model that is not quantised, and quantise the result"
        )


def config_and_shape(path: Path) -> tuple[dict[str, Any], ModelShape]:
    """The parsed config and the shape of a folder or config file; weights there set the dtype."""
    if path.is_dir() and any(path.glob("*.safetensors")):
        stored = read_folder(path)
        return stored.config, stored.shape
    config = read_config(path)
    shape = model_shape(config)
    if not (config.get("dtype") or config.get("torch_dtype")):
        said = "warning: %s states no dtype: float32 is assumed, as transformers does"
        logger.warning(said, path)
    return config, shape


def read_folder(directory: Path) -> StoredModel:
    """Read a folder's config.json and weight headers, and compare them; every command begins here.

    Buffers that older checkpoints carry along, and a second copy of tied embeddings, are left out.
    Raises InputError for damaged files, for tensors or dtypes that do not fit the config, and for a
    folder in which two programs would see two models.
    """
    config = read_config(directory)
    shape = model_shape(config)
    if shape.quantization is None and (directory / QUANTIZATION_FILE).exists():
        raise InputError(
            f"{directory} holds {QUANTIZATION_FILE}, which vLLM alone reads: quantise with a tool "
            "that writes quantization_config into config.json, or move the file out of the folder"
        )
    found = _stored_tensors(directory)
    tensors = _of_language_model(directory, found, shape)
    if shape.quantization is not None:
        return _quantised(StoredModel(directory, config, shape, {}), tensors)
    expected = shape.tensor_shapes()
    missing = [name for name in expected if name not in tensors]
    surplus = [name for name in tensors if name not in expected and not _ignored(name, shape)]
    _compare_names(directory, missing, surplus)
    for name, size in expected.items():
        _check_size(tensors[name], name, size)
    _check_tied_copy(shape, tensors)
    apart = {n for n in expected if n.endswith(MAYBE_FLOAT32) and tensors[n].dtype == "float32"}
    dtype = _common_dtype({name: tensors[name] for name in expected if name not in apart})
    apart = apart if dtype != "float32" else set()
    if shape.pruned and dtype != shape.dtype:
        raise InputError(
            f"{directory / 'config.json'} says {shape.dtype} and the tensors are {dtype}: one of "
            "them was replaced; export the checkpoint again"
        )
    files = {name: tensors[name].path for name in expected}
    shape = replace(shape, dtype=dtype, in_float32=frozenset(apart))
    if len(tensors) < len(found):
        note_once("note: of %s vision tower and MTP head are left out, if it has them", directory)
    return StoredModel(directory, config, shape, files)


def _of_language_model(
    directory: Path, tensors: dict[str, StoredTensor], shape: ModelShape
) -> dict[str, StoredTensor]:
    """The tensors of the language model alone, by its own names."""
    if not shape.family.is_hybrid:
        return tensors
    kept = {n: t for n, t in tensors.items() if not n.startswith(("model.visual.", "mtp."))}
    if twice := [name for name in kept if stored_name(name, kept) != name]:
        raise InputError(
            f"{directory} holds {twice[0]} and {stored_name(twice[0], kept)}, one tensor by two "
            f"names: {APART}"
        )
    return {name.replace(IN_WHOLE, "model.", 1): tensor for name, tensor in kept.items()}


def _compare_names(directory: Path, missing: list[str], surplus: list[str]) -> None:
    """Raise InputError for tensors that a folder lacks, and for those that it should not hold."""
    if missing:
        raise InputError(
            f"{directory} lacks {listed(missing)}, which its config.json asks for: {APART}"
        )
    if surplus:
        raise InputError(
            f"{directory} holds {listed(surplus)}, which its config.json does not know: {APART}"
        )


def _check_size(tensor: StoredTensor, name: str, size: tuple[int, ...]) -> None:
    if tensor.shape != size:
        raise InputError(
            f"{name} has the shape {tensor.shape} in {tensor.path} and {size} by "
            f"config.json: {APART}"
        )


def _check_tied_copy(shape: ModelShape, tensors: dict[str, StoredTensor]) -> None:
    """Raise InputError for a head that differs from the embeddings that config.json ties it to."""
    if not (shape.tied_embeddings and HEAD in tensors):
        return
    import torch  # seconds, which other folders need not wait

    embeddings, head = tensors[EMBEDDINGS], tensors[HEAD]
    same = embeddings.shape == head.shape and embeddings.dtype == head.dtype
    if same:
        with safe_open(embeddings.path, "pt") as first, safe_open(head.path, "pt") as second:
            stored = stored_name(EMBEDDINGS, first.keys())
            same = torch.equal(first.get_tensor(stored), second.get_tensor(HEAD))
    if not same:
        raise InputError(
            f"config.json says tie_word_embeddings, and {HEAD} differs from {EMBEDDINGS} in "
            f"{tensors[HEAD].path.parent}: set tie_word_embeddings to false if the head is the "
            "model's own, or save the model again"
        )


def _quantised(model: StoredModel, tensors: dict[str, StoredTensor]) -> StoredModel:
    """Check a quantised folder: each module has tensors, and plain tensors have their sizes.

    Packed tensors are not checked, since each tool names and packs them in its own way.
    """
    expected = model.shape.tensor_shapes()
    held = {name.rpartition(".")[0] for name in tensors}
    wanted = {name.rpartition(".")[0] for name in expected}
    attention = {module.rpartition(".")[0] for module in wanted if module.endswith(".q_proj")}
    known = tuple(f"{module}." for module in {*wanted, *attention, HEAD.removesuffix(".weight")})
    surplus = sorted(name for name in tensors if not name.startswith(known))
    _compare_names(model.directory, sorted(wanted - held), surplus)
    plain = {n: t for n, t in tensors.items() if n in expected and t.dtype in DTYPES}
    if len(plain) == len(tensors):
        raise InputError(
            f"config.json says that {model.directory} is quantised ({model.shape.quantization}), "
            "and all of its tensors are plain: take quantization_config out of config.json"
        )
    for name, tensor in plain.items():
        _check_size(tensor, name, expected[name])
    if EMBEDDINGS in plain:
        _check_tied_copy(model.shape, tensors)
    files = {name: tensor.path for name, tensor in tensors.items()}
    stored_bytes = sum(path.stat().st_size for path in set(files.values()))
    dtype = plain[EMBEDDINGS].dtype if EMBEDDINGS in plain else model.shape.dtype
    shape = replace(model.shape, dtype=dtype, stored_bytes=stored_bytes)
    return replace(model, shape=shape, files=files)


def holds_tokenizer(directory: Path) -> bool:
    return any((directory / name).is_file() for name in TOKENIZER_FILES)


def check_tokenizer(directory: Path) -> None:
    """Raise InputError if the folder holds no tokenizer."""
    if not holds_tokenizer(directory):
        raise InputError(
            f"{directory} holds no tokenizer ({', '.join(TOKENIZER_FILES)}): "
            "copy the tokenizer files of the base model into it"
        )


def _common_dtype(tensors: dict[str, StoredTensor]) -> str:
    """The dtype that all tensors have; InputError for several, and for one that cannot be cut."""
    first, *_ = tensors
    dtype = tensors[first].dtype
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES or tensor.dtype != dtype:
            raise InputError(
                f"{name} in {tensor.path} is {tensor.dtype}, and {first} is {dtype}: take a model "
                f"that is not quantised, all in {' or '.join(DTYPES)}, or save it so, with "
                "from_pretrained(..., dtype=...).save_pretrained(...)"
            )
    return dtype


def _stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder's weight files; InputError if one is not where the index puts it."""
    files, weight_map = weight_files(directory)
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        for name, tensor in _header(path).items():
            if weight_map and weight_map.get(name) != path.name:
                raise InputError(
                    f"{name} lies in {path}, and {INDEX_FILE} puts it elsewhere or leaves it out: "
                    "fetch the model again"
                )
            tensors[name] = tensor
    return tensors


def _header(path: Path) -> dict[str, StoredTensor]:
    """The entries of a file's header; safetensors itself compares them with the file's length."""
    path.open("rb").close()  # raises if it may not be read, which safetensors calls missing
    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            coded = ((name, part.get_dtype(), part.get_shape()) for name, part in slices.items())
            return {
                name: StoredTensor(path, DTYPE_OF_CODE.get(code, code), tuple(shape))
                for name, code, shape in coded
            }
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is cut short or damaged ({error}): fetch the file again (a pointer of Git LFS "
            "with `git lfs pull`)"
        ) from None


def _ignored(name: str, shape: ModelShape) -> bool:
    return (shape.tied_embeddings and name == HEAD) or name.endswith("rotary_emb.inv_freq")
