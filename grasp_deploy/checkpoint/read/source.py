"""Sources of models: a folder, or the Hugging Face hub."""

from __future__ import annotations

import logging
import socket
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from grasp_deploy.checkpoint.format.shapes import limits_of, read_config
from grasp_deploy.checkpoint.read.folder import weight_files
from grasp_deploy.errors import InputError, first_line
from grasp_deploy.files.disk import kind_of, sha256
from grasp_deploy.files.outputs import MANIFEST_FILE, PLAN_FILE

CARRIED_OVER = (  # what a checkpoint has as it is in its base model
    "tokenizer*",
    "tekken.json",
    "vocab.*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
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
    *CARRIED_OVER,
    NAMED_TEMPLATES,
)
# Subfolders, whose files end otherwise than in .jinja; Mistral's second copy.
UNWANTED = ("*/*[!a]", "*.py", "*.bin", "consolidated*")
REFUSALS = {  # by the name of huggingface_hub's error; the first that fits counts
    "HFValidationError": "that is neither a folder here nor a hub id: name one of them",
    "GatedRepoError": (
        "the hub keeps it behind a form: accept its terms on https://huggingface.co/{name}, then "
        "log in with `hf auth login`"
    ),
    "RevisionNotFoundError": "the hub has no such revision of it: look at its branches and tags",
    "RepositoryNotFoundError": (
        "there is no such folder here and no such model on the hub: check the name, or log in with "
        "`hf auth login` if it is private"
    ),
    "LocalEntryNotFoundError": (
        "there is no such folder here, the hub cannot be reached ({error}), and its cache does not "
        "hold the model: check the name and the network, or name a folder that holds the model"
    ),
}
logger = logging.getLogger(__name__)
PATIENCE_SECONDS = 8.0


def path_of(name: str) -> Path:
    """The path that a name would be; `~` of a user who is not there stays as it is."""
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
        if revision is not None:
            raise InputError(
                f"{name} is a folder, and only hub models have revisions: leave --revision out"
            )
        return ModelSource(name, directory, None)
    if kind is not None:
        raise InputError(f"{name} is a file: name the model's folder, or a hub id")
    if name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith("/"):
        raise InputError(f"no such folder: {name}; name a model's folder, or a hub id")
    snapshot = _fetch(name, revision, WANTED if weights else ("config.json",))
    logger.info("%s lies in %s", name, snapshot)
    return ModelSource(name, snapshot, snapshot.name)


def resolve_config(name: str, revision: str | None = None) -> Path:
    """A config file, that of a hub model, or a model's folder; InputError for an unknown one."""
    path = path_of(name)
    if kind_of(path) == "file":
        if revision is not None:
            raise InputError(
                f"{name} is a file, and only hub models have revisions: drop --revision"
            )
        return path
    if path.suffix == ".json" and not path.is_dir():
        raise InputError(f"there is no file {name}: name a model's folder or its config.json")
    found = resolve_model(name, revision, weights=False)  # weights in the hub's cache may be a part
    return found.directory / "config.json" if found.revision else found.directory


def positions_at(path: Path) -> int | None:
    """Positions that the model of a config was made for; None where it is silent, or InputError."""
    return limits_of(read_config(path), path).max_position_embeddings


def file_hashes(directory: Path) -> dict[str, str]:
    """SHA-256 of each file of a model folder's weights, by file name."""
    return {path.name: weight_hash(path) for path in weight_files(directory)[0]}


def weight_hash(path: Path) -> str:
    """SHA-256 of a weight file; a file whose size and time stand still is hashed once a process."""
    state = path.stat()
    return _hash_of_state(path.resolve(), state.st_size, state.st_mtime_ns)


def file_state(path: Path) -> tuple[str | int, ...]:
    """Machine, place, size and time of a file: equal for processes that see the same one."""
    state, machine = path.stat(), (socket.gethostname(), uuid.getnode())
    return (*machine, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)


@cache
def _hash_of_state(path: Path, size_bytes: int, changed_nanoseconds: int) -> str:
    return sha256(path)


def _fetch(name: str, revision: str | None, wanted: tuple[str, ...]) -> Path:
    """The snapshot's folder, which is named after the commit."""
    from huggingface_hub import errors

    try:
        return Path(_snapshot(name, revision, wanted))
    except (OSError, errors.HFValidationError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        said = [text for kind, text in REFUSALS.items() if isinstance(error, getattr(errors, kind))]
        text = [*said, "the download failed ({error}): try again"][0]
        reason = text.format(name=name, error=first_line(error.__cause__ or error))
        version = f" at revision {revision}" if revision else ""
        raise InputError(f"cannot get {name}{version}: {reason}") from None


def _snapshot(name: str, revision: str | None, wanted: tuple[str, ...]) -> str:
    """Download from the hub if it answers in time, else take what the cache holds."""
    from huggingface_hub import HfApi, errors, snapshot_download

    silence: Exception | None = None
    try:
        # Asked only because `snapshot_download` would wait for a silent hub without end.
        HfApi().model_info(name, revision=revision or "main", timeout=PATIENCE_SECONDS)
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise
    except (OSError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        silence = error
    try:
        return snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(wanted),
            ignore_patterns=list(UNWANTED),
            local_files_only=silence is not None,
        )
    except errors.LocalEntryNotFoundError as error:
        raise error from silence or error.__cause__
