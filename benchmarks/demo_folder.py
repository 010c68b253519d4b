"""Where the demo model's script writes: it replaces its own model, and nothing else."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import check_writable

CARD, TITLE = "README.md", "# The demo model of grasp-deploy"
FILES = {  # all that this script writes, with any release of transformers
    CARD,
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


def is_demo_model(folder: Path) -> bool:
    """Whether a folder holds what this script wrote, and nothing else."""
    if not folder.is_dir() or any(p.name not in FILES or not p.is_file() for p in folder.iterdir()):
        return False
    card = folder / CARD
    return card.is_file() and TITLE in card.read_text("utf-8", errors="replace").splitlines()


def check_place(folder: Path) -> None:
    """InputError if a model could not be written there; only an earlier one is ever replaced."""
    if folder.exists() and not is_demo_model(folder):
        raise InputError(
            f"--output {folder} exists and is no demo model that this script wrote: name another "
            "folder"
        )
    check_writable(folder)


def replace_folder(folder: Path, made: Path) -> None:
    """Give `made` the name of a folder that may be there, which gets it back if that fails."""
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old-", dir=folder.parent))
    try:
        if folder.exists():
            folder.rename(old)  # in the place of an empty folder
        made.rename(folder)
    finally:
        if not folder.exists() and is_demo_model(old):
            old.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
