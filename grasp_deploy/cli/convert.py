"""Commands that write a model in another format: `gguf`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from grasp_deploy.cli.console import print_json, print_line, stderr
from grasp_deploy.cli.options import Json, Overwrite
from grasp_deploy.files.sizes import format_bytes


def gguf_command(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a model, pruned or dense.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    kind: Annotated[
        Literal["f32", "f16", "bf16", "q8_0", "q4_0"],
        typer.Option("--type", help="Type of the matrices; llama-quantize makes others of f16."),
    ] = "f16",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a model as one GGUF file for llama.cpp, with its tokenizer and chat template."""
    from grasp_deploy.checkpoint.read.source import resolve_model
    from grasp_deploy.checkpoint.write.gguf_file import write_gguf
    from grasp_deploy.report.progress import stage_bars

    with stage_bars(stderr) as show:
        write_gguf(
            resolve_model(model).directory,
            output,
            kind,
            overwrite=overwrite,
            on_progress=lambda done, of: show({"stage": "export", "step": done, "steps": of}),
        )
    size_bytes = output.stat().st_size
    if as_json:
        print_json({"output": str(output), "size_bytes": size_bytes})
    else:
        print_line(
            f"wrote {output}, {format_bytes(size_bytes)}; run it: llama-server --model {output}"
        )
