"""What the dense model writes, in files that several recoveries share."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from grasp_deploy.compression.own_text import with_own_text
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.data import own_places
from grasp_deploy.errors import InputError
from grasp_deploy.files.tensors import read_tensors, write_tensors

OWN_ROWS = "token_ids"


def shared_own_text(path: Path, run: PreparedRun, *given: Any, **named: Any) -> PreparedRun:
    """As `with_own_text`, of the rows in a file, which gets those that a run writes more.

    The file states what its rows depend on. In a folder each such text has a file of its own.
    """
    places, known = own_places(run.text.parts), torch.empty(0)
    told = {
        "model": run.weight_hashes,
        "seed": run.config.seed,
        "healings": run.healings,
        "beginnings": sha256(json.dumps(run.text.beginnings).encode()).hexdigest(),
    }
    if path.is_dir():
        path /= f"own-text-{sha256(json.dumps(told).encode()).hexdigest()[:16]}.safetensors"
    if path.exists() and len(places):
        tensors, record = read_tensors(path, "delete it, and it is written again")
        known, length = tensors.get(OWN_ROWS, known), run.text.token_ids.shape[1]
        if known.dtype != torch.int64 or known.shape[1:] != (length,):
            raise InputError(f"{path} holds no sequences of {length} tokens: give another file")
        if others := [name for name, value in told.items() if record.get(name) != value]:
            raise InputError(f"{path} does not state the same {others[0]}: give another file")
        named["known"] = known
    run = with_own_text(run, *given, **named)
    rows = run.text.token_ids[places]
    if len(rows) > len(known):  # which come first
        write_tensors(path, {OWN_ROWS: rows}, told)
    return run
