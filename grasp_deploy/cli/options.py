"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="Folder to write.", show_default=False)
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the output.", rich_help_panel="Running")
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with an unfinished run.", rich_help_panel="Running"),
]
ShardSize = Annotated[
    str,
    typer.Option(
        "--shard-size", help="Largest weight file, such as 4GB.", rich_help_panel="Running"
    ),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
VllmFlags = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- VLLM FLAGS]",
        help="Passed on to `vllm serve`; write -- before them: -- --port 8001.",
    ),
]
MODEL_HELP = "Hub id or folder of a model, dense or pruned."
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto, float32, bfloat16 or float16; auto: float32 on a CPU, else the weights' own."
    ),
]
