"""A family of checkpoints from one run: falling budgets, masks within masks.

Text, scores and rounds are shared. A member begins with the mask and the refitted columns of the
member before it, so what a larger budget has removed never comes back.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.write.export import SHARD_BYTES
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.compression.compress import compressed
from grasp_deploy.compression.family.place import (
    RECORD_FILE,
    check_family_place,
    member_name,
    tidy,
)
from grasp_deploy.compression.family.record import family_record
from grasp_deploy.compression.family.walk import Walk
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.compression.result import finished_plan
from grasp_deploy.compression.resume import START_OVER, Workspace
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import check_room, refuse_existing
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.files.record import write_record
from grasp_deploy.pruning.ranks import by_lead, is_lead, leave


def compress_family(
    config: CompressConfig,
    output: str | Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    resume: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> dict[str, Any]:
    """Compress a model to every budget of `config.family`; returns the record of the family.

    Each member appears whole as a folder in `output`, the largest first, and the record last. A
    killed run goes on with `resume`, and makes no finished member again. Raises InputError for any
    input that cannot be used.
    """
    output = Path(output)
    config = replace(config, keep=config.family[-1])  # the config of a member names its own
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite}
    names = [member_name(keep) for keep in config.family]
    old = by_lead(lambda: check_family_place(output, names, **options))
    run = prepare(config, output if resume else None)
    members = {
        name: run_of(run, member, turn)
        for turn, (name, member) in enumerate(zip(names, member_configs(config), strict=True))
    }
    by_lead(lambda: check_room(output, sum(each.predicted_bytes for each in members.values())))
    try:
        with Workspace.open(output, run, **options) as workspace:
            finished = {
                name: by_lead(partial(_finished, output / name, member, resume, overwrite))
                for name, member in members.items()
            }
            _check_continuable(finished, workspace, config)
            walk, made = Walk(run, workspace, on_progress), []
            for name, member in members.items():
                folder, plan = output / name, finished[name]
                if plan is None:
                    if is_lead():
                        (output / RECORD_FILE).unlink(missing_ok=True)  # of whole families
                    plan = walk.write(folder, member, shard_bytes, overwrite)
                walk.go_on_from(name, plan)
                made.append(compressed(folder, plan, member))
            record = family_record(made, config)
            if leave():
                tidy(old)
                write_record(output / RECORD_FILE, record)
    finally:
        with suppress(OSError):
            output.rmdir()  # if nothing is in it
    return record


def _finished(folder: Path, member: PreparedRun, resume: bool, overwrite: bool) -> Plan | None:
    """The plan of a member that is made already; InputError if something else is in its place."""
    plan = finished_plan(folder, member) if resume else None
    if plan is None:
        refuse_existing(folder, overwrite=overwrite or resume)
        if folder.exists() and not overwrite:
            raise InputError(
                f"{folder} is damaged, or was made with other options, files or release: name "
                "another --output, or replace it with --overwrite"
            )
    return plan


def _check_continuable(
    finished: dict[str, Plan | None], workspace: Workspace, config: CompressConfig
) -> None:
    """InputError if the columns are gone that a member needs of the finished one before it."""
    for before, name in pairwise(finished):
        needed = config.compensation and finished[before] is not None and finished[name] is None
        if needed and not workspace.part(before).has("compensation"):
            raise InputError(
                f"to make {name}, columns refitted for {before} are needed, and "
                f"{workspace.directory} holds them no more: {START_OVER}"
            )


def member_configs(config: CompressConfig) -> list[CompressConfig]:
    """The configs of a family's members, the largest budget first.

    Gates are learnt for the smallest alone: behind rounds they rarely change a mask.
    """
    rounds_alone: dict[str, Any] = {}
    if config.learns:
        rounds_alone = {"method": "progressive", "temperature": CompressConfig.temperature}
    *larger, smallest = config.family
    milder = [replace(config, keep=keep, **rounds_alone) for keep in larger]
    return [*milder, replace(config, keep=smallest)]


def run_of(run: PreparedRun, config: CompressConfig, turn: int) -> PreparedRun:
    """The checked run of the member at a place of its family."""
    budget = budget_for(config, run.base.shape, run.device)
    return replace(run, config=config, budget=budget, turn=turn)
