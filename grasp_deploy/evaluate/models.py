"""The models under comparison, resolved and checked before anything is measured."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint import limits
from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import ModelShape, read_config
from grasp_deploy.checkpoint.read.source import path_of, resolve_config, resolve_model
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import kind_of


@dataclass(frozen=True)
class BenchModel:
    """A model: its name in records, its path, and its shape in the dtype asked for."""

    name: str
    path: Path  # a model's folder; with random weights also a config.json under any name
    shape: ModelShape
    random_weights: bool

    def as_dict(self) -> dict[str, Any]:
        """Name and footprint, as records have them."""
        return {"name": self.name, "footprint": footprint(self.shape).as_dict()}


def bench_models(
    names: Sequence[str], random_weights: bool = False, dtype: str = "auto"
) -> list[BenchModel]:
    """The models of these hub ids, folders or, with random weights, config files, in their order.

    `dtype` "auto" is that of the weights, or of config.json where weights are random. Raises
    InputError for no model, a missing or unsupported config.json, and for weights that are missing
    or damaged where real ones are asked for.
    """
    if not names:
        raise InputError("no model is named: give at least one folder or hub id")
    models = []
    for name, label in zip(names, _labels(names), strict=True):
        path, shape = _path_and_shape(name, random_weights)
        shape = shape if dtype == "auto" else _computed_in(shape, dtype)
        models.append(BenchModel(label, path, shape, random_weights))
    return models


def check_positions(models: Sequence[BenchModel], tokens: int | None, option: str) -> None:
    """Raise InputError, naming the option, for sequences longer than a model has positions."""
    for model in models:
        limits.check_positions(tokens, read_config(model.path), option, model.name)


@contextmanager
def model_folder(model: BenchModel) -> Iterator[Path]:
    """A folder whose config.json is the model's, for engines that load nothing but folders."""
    if model.path.is_dir():
        yield model.path
        return
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(model.path, Path(folder) / "config.json")
        yield Path(folder)


def _path_and_shape(name: str, random_weights: bool) -> tuple[Path, ModelShape]:
    """A model's path, and its shape in the dtype of its weights."""
    from grasp_deploy.checkpoint.read import validate  # help needs no safetensors

    if random_weights:
        path = resolve_config(name)
        shape = validate.config_and_shape(path)[1]
        validate.refuse_quantised(shape)
        return path, shape
    if kind_of(path_of(name)) == "file":
        raise InputError(
            f"{name} is a file and holds no weights: name the model's folder, or give "
            "--random-weights"
        )
    path = resolve_model(name).directory
    if not any(path.glob("*.safetensors")):
        raise InputError(
            f"{path} holds no weights (.safetensors): for its shape alone give --random-weights"
        )
    return path, validate.read_folder(path).shape


def _computed_in(shape: ModelShape, dtype: str) -> ModelShape:
    """The shape in another dtype, to which embedding and head of a quantised model are widened."""
    ends = (2 - shape.tied_embeddings) * shape.vocab_size * shape.hidden_size
    made = replace(shape, dtype=dtype)
    more = ends * (made.bytes_per_parameter - shape.bytes_per_parameter)
    return replace(made, stored_bytes=shape.stored_bytes and shape.stored_bytes + more)


def _labels(names: Sequence[str]) -> list[str]:
    """A name for each model: its own, with its folder's or a number where two are the same."""
    places = [_place(name) for name in names]
    own = Counter(place.name for place in places)
    labels = [
        place.name if own[place.name] == 1 else f"{place.parent.name}/{place.name}"
        for place in places
    ]
    if len(set(labels)) < len(labels):
        labels = [place.name for place in places]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            numbered = (f"{label}#{number}" for number in count(2))
            labels[index] = next(name for name in numbered if name not in labels)
    return labels


def _place(name: str) -> Path:
    """What names a model: its folder, hub id, or config file (without suffix) of another name."""
    path = path_of(name)
    if path.is_file() and path.name != "config.json":
        return path.with_suffix("")
    if path.exists():
        path = path.resolve()
    return path.parent if path.name == "config.json" else path
