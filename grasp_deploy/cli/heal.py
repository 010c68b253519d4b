"""`heal`: minutes of fine-tuning after the cut."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.console import print_json, stderr, stdout
from grasp_deploy.cli.options import Device, Dtype, Json, Output, Overwrite
from grasp_deploy.errors import InputError


def heal_command(
    directory: Annotated[Path, typer.Argument(help="Folder of a pruned checkpoint.")],
    *,
    data: Annotated[
        str, typer.Option(help="Text to learn on: wikitext2, ptb, c4, a file, or hf:NAME[:CONFIG].")
    ],
    output: Output,
    split: Annotated[str | None, typer.Option(help="Rows to use, such as 'train[:900]'.")] = None,
    column: Annotated[str | None, typer.Option(help="Column that holds the text.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="To learn, by default 10; loading comes on top.", show_default=False),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Instead of --minutes: the same result on every run.", show_default=False
        ),
    ] = None,
    sequences: Annotated[int, typer.Option(help="How many blocks of text.")] = 512,
    sequence_length: Annotated[int, typer.Option(min=2, help="Tokens in a block.")] = 512,
    batch_size: Annotated[int, typer.Option(help="Blocks in a step.")] = 2,
    rank: Annotated[int, typer.Option(help="Of the adapters.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW, at first; it falls.")] = 1e-3,
    model: Annotated[
        str | None,
        typer.Option(help="Dense model to learn from; default: the one that the plan names."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Orders the blocks, starts the adapters.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a pruned checkpoint towards its dense model, with LoRA, for some minutes.

    Shapes stay, so memory and speed stay too. The weights that do best on held-out text win, and
    it ends early where the loss there has long not fallen.
    """
    from grasp_deploy.healing.heal import check_installed, heal
    from grasp_deploy.healing.lora import HealConfig
    from grasp_deploy.report.progress import stage_bars

    check_installed()
    if minutes is not None and steps is not None:
        raise InputError("--minutes and --steps both say when to end: give one of them")
    if not directory.is_dir():
        raise InputError(f"there is no folder {directory}: name a checkpoint that compress made")
    config = HealConfig(
        calibration=data,
        calibration_split=split,
        calibration_column=column,
        sequences=sequences,
        sequence_length=sequence_length,
        minutes=10.0 if minutes is None else minutes,
        steps=steps,
        rank=rank,
        learning_rate=learning_rate,
        batch_size=batch_size,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    with stage_bars(stderr) as on_progress:
        healed = heal(
            directory, config, output, model=model, overwrite=overwrite, on_progress=on_progress
        )
    if as_json:
        print_json({**asdict(healed), "output": str(output)})
        return
    whole = healed.steps == steps if steps is not None else healed.seconds >= 60 * config.minutes
    early = "" if whole else ", ended early"
    stdout.print(
        f"held-out loss, nats per token: {healed.loss_dense:.3f} dense, {healed.loss_before:.3f} "
        f"pruned, {healed.loss_after:.3f} healed ({healed.steps} steps, {healed.seconds:.0f} s"
        f"{early})",
        soft_wrap=True,
        highlight=False,
    )
    line = f"wrote {output}; serve it: grasp-deploy serve {output}"
    stdout.print(line, soft_wrap=True, markup=False)
