"""`serve`: a checkpoint in front of users."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.options import VllmFlags


def serve_command(
    directory: Annotated[Path, typer.Argument(help="Folder of a checkpoint, pruned or dense.")],
    vllm_flags: VllmFlags = None,
) -> None:
    """Check a checkpoint, then serve it with `vllm serve` on 127.0.0.1."""
    from grasp_deploy.engine.serve import serve

    serve(directory, vllm_flags or [])
