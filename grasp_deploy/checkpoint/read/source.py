"""Where a model lies, in a folder or on the hub, and its weight files, the same for all readers.

transformers, vLLM and converters each look for files by their own patterns. A folder in which two
of them would find two models is refused here. What vLLM would prefer to these files is switched off
by `engine.flags.FORMAT`.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from grasp_deploy.checkpoint.format.families import REMEDY
from grasp_deploy.checkpoint.format.shapes import limits_of, read_config
from grasp_deploy.errors import InputError, first_line
from grasp_deploy.files.disk import kind_of, sha256
from grasp_deploy.files.json_files import read_json, typed
from grasp_deploy.files.outputs import MANIFEST_FILE, PLAN_FILE

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ADAPTER_FILE = "adapter_config.json"
QUANTIZATION_FILE = "hf_quant_config.json"
# Mistral's copy of the weights, which every reader skips where an index names the others.
BESIDE_AN_INDEX = "consolidated*.safetensors"
CARRIED_OVER = (  # files that a checkpoint copies unchanged from its base model
    "tokenizer.json",
    "tokenizer.[0-9]*.json",  # of a release of transformers, if tokenizer_config.json names it
    "tokenizer_config.json",
    "tokenizer.model",
    "tokenizer.model.v[0-9]",  # of Mistral
    "tokenizer.model.v[0-9]m[0-9]",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE*",
    "NOTICE*",
    "USE_POLICY*",
)
NAMED_TEMPLATES = "additional_chat_templates/*.jinja"
# Never pickled weights, which can run code, and never Python files.
WANTED = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    MANIFEST_FILE,
    PLAN_FILE,
    "README.md",  # its licence and language go into the card of what is cut from it
    "compress_config.json",
    "metrics.jsonl",
    "quality.json",
    *CARRIED_OVER,
    NAMED_TEMPLATES,
)
REMOTE_CODE_FILES = ("configuration_grasp.py", "modeling_grasp.py")  # so never fetched
# Files in subfolders that are no .jinja templates; Python; pickles; Mistral's copy of the weights.
UNWANTED = ("*/*[!a]", "*.py", "*.bin", "consolidated*")
REFUSALS = {  # by the name of huggingface_hub's error; the first that fits counts
    "HFValidationError": "that is neither a folder here nor a hub id: name one of them",
    "GatedRepoError": "accept its terms on https://huggingface.co/{name}, and log in with `hf auth "
    "login`",
    "RevisionNotFoundError": "the hub has no such revision of it: look at its branches and tags",
    "RepositoryNotFoundError": "there is no such folder here and no such model on the hub: check "
    "the name, or log in with `hf auth login` if it is private",
    "LocalEntryNotFoundError": "there is no such folder here, the hub cannot be reached ({error}), "
    "and its cache does not hold the model: check the name and the network",
}
logger = logging.getLogger(__name__)
PATIENCE_SECONDS = 8.0


def path_of(name: str) -> Path:
    """A name as a path; `~` of an unknown user stays as it is. InputError for an empty name."""
    if not name:
        raise InputError("the name of a model is empty: give a model's folder, or a hub id")
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


@dataclass(frozen=True)
class ModelSource:
    """A model as the user named it, the folder that holds it, and a hub model's commit."""

    name: str
    directory: Path
    revision: str | None


def resolve_model(name: str, revision: str | None = None, weights: bool = True) -> ModelSource:
    """The folder of a model that is named by its path or its hub id, fetched if need be.

    With `weights=False` only config.json is fetched. Without a network the hub's cache serves.
    Raises InputError for an unknown folder or model, or if the hub is out of reach.
    """
    directory = path_of(name)
    kind = kind_of(directory)
    if kind == "folder":
        _refuse_revision(name, revision)
        return ModelSource(name, directory, None)
    if kind is not None:
        raise InputError(f"{name} is a file: name the model's folder, or a hub id")
    if name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith("/"):
        raise InputError(f"no such folder: {name}; name a model's folder, or a hub id")
    snapshot = _fetch(name, revision, WANTED if weights else ("config.json",))
    logger.info("%s lies in %s", name, snapshot)
    return ModelSource(name, snapshot, snapshot.name)


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise InputError(f"{name} is no hub model, and has no revisions: leave --revision out")


def resolve_config(name: str, revision: str | None = None) -> Path:
    """The path of a named or a hub model's config.json, or of a model's folder; else InputError."""
    path = path_of(name)
    if kind_of(path) == "file":
        _refuse_revision(name, revision)
        return path
    if path.suffix == ".json" and not path.is_dir():
        raise InputError(f"there is no file {name}: name a model's folder or its config.json")
    found = resolve_model(name, revision, weights=False)  # cached weights may be incomplete
    return found.directory / "config.json" if found.revision else found.directory


def fewest_positions(paths: Iterable[Path], at_most: int) -> int:
    """The longest sequence, up to `at_most` tokens, that all of these models were made for."""
    found = (limits_of(read_config(path), path).max_position_embeddings for path in paths)
    return min([at_most, *filter(None, found)])


def file_hashes(directory: Path) -> dict[str, str]:
    """SHA-256 of each file of a model folder's weights, by file name."""
    return {path.name: weight_hash(path) for path in weight_files(directory)[0]}


def weight_hash(path: Path) -> str:
    """SHA-256 of a weight file, computed once a process while its size and mtime are the same."""
    return _hash_of_state(*_state(path))


@cache
def _hash_of_state(path: Path, size_bytes: int, changed_nanoseconds: int) -> str:
    return sha256(path)


def _state(path: Path) -> tuple[Path, int, int]:
    state = path.stat()
    return path.resolve(), state.st_size, state.st_mtime_ns


def weight_states(directory: Path) -> dict[Path, Any]:
    """Place, size and mtime of each file of a model folder's weights, to be compared later."""
    return {path: _state(path) for path in weight_files(directory)[0]}


@contextmanager
def unchanged(states: dict[Path, Any]) -> Iterator[None]:
    """Raise InputError, in place of any other error, if the block ends with other weight files."""
    try:
        yield
    finally:
        for path, state in states.items():
            if not path.exists() or _state(path) != state:
                raise InputError(
                    f"{path} was replaced while it was read: give the command again"
                ) from None


def _fetch(name: str, revision: str | None, wanted: tuple[str, ...]) -> Path:
    """Fetch a snapshot (the cached one if the hub is silent); its folder, named by the commit."""
    from huggingface_hub import HfApi, errors, snapshot_download

    silence: Exception | None = None
    try:
        try:  # asked only because `snapshot_download` would wait for a silent hub without end
            HfApi().model_info(name, revision=revision or "main", timeout=PATIENCE_SECONDS)
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise
        except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]
            silence = error
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(wanted),
            ignore_patterns=list(UNWANTED),
            local_files_only=silence is not None,
        )
        return Path(folder)
    except (OSError, errors.HFValidationError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        said = [text for kind, text in REFUSALS.items() if isinstance(error, getattr(errors, kind))]
        text = [*said, "the download failed ({error}): try again"][0]
        reason = text.format(name=name, error=first_line(silence or error.__cause__ or error))
        version = f" at revision {revision}" if revision else ""
        raise InputError(f"cannot get {name}{version}: {reason}") from None


class ShardIndex(msgspec.Struct):
    """The required keys of an index of shards; transformers loads none without metadata."""

    weight_map: dict[str, str]  # file by tensor name
    metadata: dict[str, Any]


def weight_files(directory: Path) -> tuple[list[Path], dict[str, str]]:
    """The files of a folder's weights, and the file name of each tensor where an index says it.

    Raises InputError for pickled weights or none, and for files that two programs read differently.
    """
    names = {path.name for path in directory.iterdir()}
    if ADAPTER_FILE in names:
        raise InputError(
            f"{directory} holds an adapter ({ADAPTER_FILE}), which transformers adds to the "
            "weights and vLLM does not: merge it with PEFT (merge_and_unload, then "
            "save_pretrained), or move the adapter's files out of the folder"
        )
    if not names & {WEIGHTS_FILE, INDEX_FILE}:
        raise InputError(
            f"{directory} holds no weights ({WEIGHTS_FILE} or {INDEX_FILE}): fetch the model "
            "again; pickled weights can run code, so convert them where you trust them, with "
            "transformers' from_pretrained and save_pretrained"
        )
    weight_map: dict[str, str] = {}
    if INDEX_FILE in names:
        index = directory / INDEX_FILE
        weight_map = typed(read_json(index, REMEDY), ShardIndex, index, REMEDY).weight_map
    files = sorted(set(weight_map.values())) if INDEX_FILE in names else [WEIGHTS_FILE]
    for name in files:
        is_weights = name.endswith(".safetensors") and not name.startswith(".")
        if not is_weights or Path(name).name != name or kind_of(directory / name) != "file":
            raise InputError(
                f"{directory} should hold {name!r:.80}, which is no .safetensors file there: "
                f"{REMEDY}"
            )
    for name in sorted(name for name in names - set(files) if name.endswith(".safetensors")):
        if INDEX_FILE not in names or not fnmatch(name, BESIDE_AN_INDEX):
            raise InputError(
                f"{directory / name} may belong to another model, since no index names it, and "
                "some programs load every .safetensors file: move it out of the folder"
            )
    return [directory / name for name in files], weight_map


def listed(names: Iterable[str]) -> str:
    """The first three names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
