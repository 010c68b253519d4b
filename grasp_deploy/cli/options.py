"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SHARD_SIZE_HELP = "Largest weight file, such as 4GB."

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="Folder to write.", show_default=False)
]
RecordOutput = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="JSON file to write the record to.", show_default=False),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the output.", rich_help_panel="Running")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an unfinished run.", rich_help_panel="Running")
]
ShardSize = Annotated[
    str, typer.Option("--shard-size", help=SHARD_SIZE_HELP, rich_help_panel="Running")
]
HiddenShardSize = Annotated[  # `--help-all` shows it
    str, typer.Option("--shard-size", help=SHARD_SIZE_HELP, rich_help_panel="Running", hidden=True)
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
VllmFlags = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- VLLM FLAGS]", help="Flags for `vllm serve`, after --, such as -- --port 8001."
    ),
]
MODEL_HELP = "Hub id or folder of a model, dense or pruned."
Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help="Hub ids or folders, dense or pruned; the others are compared with the first.",
        show_default=False,
    ),
]
RandomWeights = Annotated[
    bool,
    typer.Option(
        "--random-weights",
        help="Fill the models with random weights; each needs only a config.json.",
    ),
]
