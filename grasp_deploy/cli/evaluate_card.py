"""`evaluate card`: what a checkpoint lost, in its model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.console import print_json, stderr, stdout
from grasp_deploy.cli.options import Device, Dtype, Json


def card_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a checkpoint.")],
    *,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]TEXT[@SPLIT]",
            help="Text that it was not calibrated on: wikitext2, ptb, c4, a local file, or "
            "hf:NAME[:CONFIG]. May be repeated. Default: wikitext2 and c4, less the one that it "
            "was calibrated on.",
            show_default=False,
        ),
    ] = None,
    record: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Accuracies: what `evaluate tasks --output` wrote for the dense model and this "
            "one. May be repeated.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Hub id or folder of the dense model. Default: the one the plan names."),
    ] = None,
    column: Annotated[str | None, typer.Option(help="Column that holds the text.")] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens in a block. Default: 2048, or what the model takes."),
    ] = None,
    sequences: Annotated[int, typer.Option(min=1, help="How many blocks of each corpus.")] = 80,
    batch_size: Annotated[int, typer.Option(min=1, help="Blocks in a batch.")] = 1,
    device: Device = "auto",
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Measure dense beside pruned, judge, and write it into DIR: quality.json and README.md.

    A card that is there is replaced as a whole.
    """
    from grasp_deploy.evaluate.quality.card import CardSettings, evaluate_card
    from grasp_deploy.report.card_tables import card_tables
    from grasp_deploy.report.progress import stage_bars

    settings = CardSettings(
        data=tuple(data or ()),
        records=tuple(record or ()),
        model=model,
        column=column,
        sequence_length=sequence_length,
        sequences=sequences,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
    )
    with stage_bars(stderr) as on_progress:
        quality = evaluate_card(directory, settings, on_progress)
    if as_json:
        print_json(quality)
        return
    for table in card_tables(quality):
        stdout.print(table)
    stdout.print(quality["verdict"]["sentence"], soft_wrap=True, markup=False, highlight=False)
