"""The weight files of a model folder, the same for whoever reads it.

transformers, vLLM and converters each look for files by their own patterns. A folder in which two
of them would find two models is refused here. What vLLM would prefer to these files is switched off
by `engine.flags.FORMAT`.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import kind_of
from grasp_deploy.files.json_files import read_json, typed

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ADAPTER_FILE = "adapter_config.json"
QUANTIZATION_FILE = "hf_quant_config.json"
# Skipped by every reader where an index names the weights: Mistral's copy.
BESIDE_AN_INDEX = "consolidated*.safetensors"
PICKLES = ("pytorch_model*.bin", "consolidated*.pth", "*.pt")
REMEDY = "fetch the model again"


class ShardIndex(msgspec.Struct):
    """The required keys of an index of shards; transformers loads none without metadata."""

    weight_map: dict[str, str]  # file by tensor name
    metadata: dict[str, Any]


def weight_files(directory: Path) -> tuple[list[Path], dict[str, str]]:
    """The files of a folder's weights, and the file name of each tensor where an index says it.

    Raises InputError for pickled weights or none, and for files that make it two models.
    """
    names = {path.name for path in directory.iterdir()}
    if ADAPTER_FILE in names:
        raise InputError(
            f"{directory} holds an adapter ({ADAPTER_FILE}), which transformers adds to the "
            "weights and vLLM does not: merge it with PEFT (merge_and_unload, then "
            "save_pretrained), or move the adapter's files out of the folder"
        )
    if not names & {WEIGHTS_FILE, INDEX_FILE}:
        raise _without_weights(directory)
    weight_map = _read_index(directory / INDEX_FILE) if INDEX_FILE in names else {}
    files = sorted(set(weight_map.values())) if INDEX_FILE in names else [WEIGHTS_FILE]
    if WEIGHTS_FILE in names and WEIGHTS_FILE not in files:
        raise InputError(
            f"{directory} holds {WEIGHTS_FILE}, which transformers loads, and an index of other "
            "files, which vLLM loads: move one of the two out of the folder"
        )
    for name in files:
        is_weights = name.endswith(".safetensors") and not name.startswith(".")
        if not is_weights or Path(name).name != name or kind_of(directory / name) != "file":
            raise InputError(
                f"{directory} should hold {name!r:.80}, which is no .safetensors file there: "
                f"{REMEDY}"
            )
    _refuse_strays(directory, names - set(files), indexed=INDEX_FILE in names)
    return [directory / name for name in files], weight_map


def _refuse_strays(directory: Path, names: set[str], indexed: bool) -> None:
    """InputError for weights that no index names: without one vLLM loads every file."""
    for name in sorted(name for name in names if name.endswith(".safetensors")):
        if not (indexed and fnmatch(name, BESIDE_AN_INDEX)):
            why = f"{INDEX_FILE} does not name it" if indexed else f"beside {WEIGHTS_FILE}"
            raise InputError(
                f"{directory / name} may belong to another model ({why}), and some programs load "
                "every .safetensors file: move it out of the folder"
            )


def _read_index(index: Path) -> dict[str, str]:
    return typed(read_json(index, REMEDY), ShardIndex, index, REMEDY).weight_map


def listed(names: Iterable[str]) -> str:
    """The first three names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _without_weights(directory: Path) -> InputError:
    pickles = sorted({path.name for pattern in PICKLES for path in directory.glob(pattern)})
    if pickles:
        return InputError(
            f"{directory} has its weights only as pickle ({listed(pickles)}), which can run code: "
            f'convert them where you trust them, with transformers: from_pretrained("{directory}")'
            ".save_pretrained(...) writes safetensors"
        )
    return InputError(
        f"{directory} holds no weights ({WEIGHTS_FILE} or {INDEX_FILE}): fetch the model again"
    )
