"""A family of checkpoints: a run for each of several budgets, from the largest to the smallest.

A run starts from the mask that the one before has reached, so what a larger budget has removed
never comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.checkpoint.read.validate import config_and_shape
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.ranks import by_lead, is_lead
from grasp_deploy.compression.result import Compressed
from grasp_deploy.compression.resume import (
    CONFIG_FILE,
    START_OVER,
    STEP,
    partial_of,
    refuse_foreign,
)
from grasp_deploy.compression.run_options import FROM_DENSE, RunOptions, Start
from grasp_deploy.config.compress_config import CompressConfig, changed_options
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import read_json
from grasp_deploy.files.outputs import refuse_existing


def compress_family(config: CompressConfig, options: RunOptions) -> list[Compressed]:
    """Compress a model to each budget of `config.family`, each into a folder of the output.

    Each appears whole. A killed family goes on with `resume`, and makes no finished member again.
    Raises InputError for any input that cannot be used.
    """
    members = {
        options.output / f"{STEP}{keep}": replace(config, keep=keep) for keep in config.family
    }
    by_lead(lambda: _check_places(members, options))
    shape = config_and_shape(resolve_config(config.model, config.revision))[1]
    budget_for(replace(config, keep=min(config.family)), shape, torch.device("cpu"))  # possible?
    made, start, was_there = [], FROM_DENSE, options.output.exists()
    try:
        for folder, member in members.items():
            made.append(compress(member, options.into(folder), start))
            start = Start(made[-1].plan.mask, made[-1].text or start.text)
    finally:
        if is_lead() and not was_there:
            with suppress(OSError):
                options.output.rmdir()  # if nothing is in it
    return made


def _check_places(members: Mapping[Path, CompressConfig], options: RunOptions) -> None:
    """InputError, before any work, for what may not be replaced, or is of other options."""
    output = options.output
    if (
        output.name in ("", "..")
        or output.is_symlink()
        or (output.exists() and not output.is_dir())
    ):
        raise InputError(f"the output {output} is no folder of its own: name one to make")
    for folder, config in members.items():
        begun = [p for p in (folder, partial_of(folder)) if (p / CONFIG_FILE).exists()]
        for place in () if options.overwrite else begun:
            if not options.resume:
                raise InputError(
                    f"{place} exists: go on with --resume, replace it with --overwrite, or name "
                    "another --output"
                )
            stored = read_json(place / CONFIG_FILE, START_OVER)
            if changed := changed_options(stored, config.as_dict()):
                raise InputError(
                    f"{place} was made with other options ({', '.join(changed)}): name another "
                    "--output, or replace it with --overwrite"
                )
        refuse_foreign(partial_of(folder))
        refuse_existing(folder, overwrite=options.overwrite or options.resume)
