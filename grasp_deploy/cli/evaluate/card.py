"""`evaluate card`: the quality of a checkpoint, in its model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.console import print_json, print_line, stderr, stdout
from grasp_deploy.cli.options import Json
from grasp_deploy.cli.settings_options import takes_settings
from grasp_deploy.evaluate.settings import CardSettings


@takes_settings(CardSettings)
def card_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a checkpoint.")],
    *,
    settings: CardSettings,
    as_json: Json = False,
) -> None:
    """Measure dense beside pruned, and write the verdict into DIR: quality.json and README.md.

    An older card is replaced as a whole.
    """
    from grasp_deploy.evaluate.card import evaluate_card
    from grasp_deploy.report.progress import stage_bars
    from grasp_deploy.report.tables import card_tables

    with stage_bars(stderr) as on_progress:
        quality = evaluate_card(directory, settings, on_progress)
    if as_json:
        print_json(quality)
        return
    for table in card_tables(quality):
        stdout.print(table)
    print_line(quality["verdict"]["sentence"])
