"""`export`: a checkpoint made again from its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.console import print_json, print_line, stderr
from grasp_deploy.cli.options import Json, Output, Overwrite, Revision, ShardSize
from grasp_deploy.files.sizes import parse_bytes


def export_command(
    plan: Annotated[Path, typer.Argument(help="plan.safetensors of a compression.")],
    *,
    model: Annotated[str, typer.Option(help="Hub id or folder of the plan's base model.")],
    output: Output,
    revision: Revision = None,
    shard_size: ShardSize = "4GB",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Make the checkpoint again from a plan and the base model's weights."""
    from grasp_deploy.checkpoint.footprint import footprint
    from grasp_deploy.checkpoint.plan import load_plan
    from grasp_deploy.checkpoint.write.export import export
    from grasp_deploy.report.progress import stage_bars

    loaded, shard_bytes = load_plan(plan), parse_bytes(shard_size, "--shard-size")
    with stage_bars(stderr) as on_progress:
        pruned = export(
            loaded,
            model,
            output,
            revision=revision,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            on_progress=lambda done, of: on_progress(
                {"stage": "export", "step": done, "steps": of}
            ),
        )
    if as_json:
        print_json({"output": str(output), **footprint(pruned).as_dict()})
    else:
        print_line(f"wrote {output}")
