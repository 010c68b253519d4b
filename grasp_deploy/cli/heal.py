"""`heal`: minutes of fine-tuning after pruning."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.console import print_json, print_line, stderr
from grasp_deploy.cli.options import Json, Output, Overwrite
from grasp_deploy.cli.settings_options import takes_settings
from grasp_deploy.errors import InputError
from grasp_deploy.healing.settings import HealConfig

DenseModel = Annotated[
    str | None,
    typer.Option("--model", help="Dense model to learn from. Default: the plan's base model."),
]


@takes_settings(HealConfig)
def heal_command(
    directory: Annotated[Path, typer.Argument(help="Folder of a pruned checkpoint.")],
    *,
    settings: HealConfig,
    output: Output,
    model: DenseModel = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a pruned checkpoint towards its dense model, with LoRA, for some minutes.

    Shapes stay, so memory and speed stay too. The weights with the lowest held-out loss are
    written, and learning ends early once that loss no longer falls.
    """
    from grasp_deploy.healing.heal import check_installed, heal
    from grasp_deploy.report.progress import stage_bars

    check_installed()
    if not directory.is_dir():
        raise InputError(f"there is no folder {directory}: name a checkpoint that compress made")
    with stage_bars(stderr) as on_progress:
        healed = heal(
            directory, settings, output, model=model, overwrite=overwrite, on_progress=on_progress
        )
    if as_json:
        print_json({**asdict(healed), "output": str(output)})
        return
    if settings.steps is not None:
        complete = healed.steps == settings.steps
    else:
        complete = healed.seconds >= 60 * settings.minutes
    early = "" if complete else ", ended early"
    print_line(
        f"held-out loss, nats per token: {healed.loss_dense:.3f} dense, {healed.loss_before:.3f} "
        f"pruned, {healed.loss_after:.3f} healed ({healed.steps} steps, {healed.seconds:.0f} s"
        f"{early})"
    )
    print_line(f"wrote {output}; serve it: grasp-deploy serve {output}")
