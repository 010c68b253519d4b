"""`serve`, `up` and `demo`: checkpoints in front of users."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from grasp_deploy.cli.compress import print_compressed, run_compress
from grasp_deploy.cli.config_options import takes_config
from grasp_deploy.cli.console import CHECK_FAILED, print_error, stderr, stdout
from grasp_deploy.cli.inspect import run_verify
from grasp_deploy.cli.options import Overwrite, ShardSize, VllmFlags
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError


def serve_command(
    directory: Annotated[Path, typer.Argument(help="Folder of a checkpoint, pruned or dense.")],
    vllm_flags: VllmFlags = None,
) -> None:
    """Check a checkpoint, then serve it with `vllm serve` on 127.0.0.1."""
    from grasp_deploy.engine.serve import serve

    serve(directory, vllm_flags or [])


@takes_config
def up_command(
    *,
    config: CompressConfig,
    vllm_flags: VllmFlags = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Default: named after model and budget."),
    ] = None,
    shard_size: ShardSize = "4GB",
    overwrite: Overwrite = False,
) -> None:
    """Compress MODEL unless that is already done, verify the result, and serve it."""
    from grasp_deploy.checkpoint.plan import PLAN_FILE
    from grasp_deploy.cli.up import check_before_compressing, default_output, is_done
    from grasp_deploy.compression.resume import Workspace
    from grasp_deploy.engine.serve import check_before_serving, serve

    check_before_compressing(config, vllm_flags or [])
    output = output or default_output(config)
    if is_done(config, output):
        line = f"{output} is already the result of these options"
        stderr.print(line, soft_wrap=True, markup=False)
    else:
        if (output / PLAN_FILE).is_file() and not overwrite:
            raise InputError(
                f"{output} was made with other options, files or release: name another --output, "
                "or replace it with --overwrite"
            )
        resume = not overwrite and Workspace.begun_with(output, config)
        go_on = "give the same command again"
        record = run_compress(config, output, shard_size, resume, overwrite, go_on)
        print_compressed(record, output)
    check_before_serving(output, vllm_flags or [])
    checks = run_verify(output, config.model, "transformers", config.device)
    failed = [check for check in checks if not check["ok"]]
    if failed:
        print_error(
            "not served",
            f"{failed[0]['name']}: {failed[0]['detail']}; make the checkpoint again with "
            "--overwrite",
        )
        raise typer.Exit(CHECK_FAILED)
    stderr.print(f"verified: {', '.join(check['name'] for check in checks)}", highlight=False)
    serve(output, vllm_flags or [])


def demo_command() -> None:
    """Compress, verify and serve the small model inside this package; print dense and pruned."""
    from grasp_deploy.demo.run import run_demo
    from grasp_deploy.report.progress import stage_bars
    from grasp_deploy.report.tables import comparison_table

    with stage_bars(stderr) as on_progress:
        result = run_demo(on_progress, say=lambda text: stderr.print(text, highlight=False))
    stdout.print(comparison_table(result.dense, result.pruned))
    stdout.print(f"prompt:     {escape(result.prompt)}\ncompletion: {escape(result.completion)}")
