"""`up`: compress a model unless that is done, verify the result, and serve it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from grasp_deploy.cli.compress import print_compressed, run_compress
from grasp_deploy.cli.config_options import takes_config
from grasp_deploy.cli.console import CHECK_FAILED, print_error, stderr
from grasp_deploy.cli.options import HiddenShardSize, Overwrite, VllmFlags
from grasp_deploy.cli.verify import run_verify
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.rules import BUDGETS
from grasp_deploy.errors import InputError

OutputOrNamed = Annotated[
    Path | None, typer.Option("--output", "-o", help="Default: named after model and budget.")
]


@takes_config
def up_command(
    *,
    config: CompressConfig,
    vllm_flags: VllmFlags = None,
    output: OutputOrNamed = None,
    shard_size: HiddenShardSize = "4GB",
    overwrite: Overwrite = False,
) -> None:
    """Compress MODEL unless that is already done, verify the result, and serve it."""
    from grasp_deploy.engine.serve import check_before_serving, serve

    check_before_compressing(config, vllm_flags or [])
    output = output or default_output(config)
    if is_done(config, output):
        line = f"{output} is already the result of these options"
        stderr.print(line, soft_wrap=True, markup=False)
    else:
        _compress(config, output, shard_size, overwrite)
    check_before_serving(output, vllm_flags or [])
    checks = run_verify(output, config.model, "transformers", config.device)
    failed = next((check for check in checks if not check["ok"]), None)
    if failed:
        reason = f"{failed['name']}: {failed['detail']}"
        print_error("not served", f"{reason}; make the checkpoint again with --overwrite")
        raise typer.Exit(CHECK_FAILED)
    stderr.print(f"verified: {', '.join(check['name'] for check in checks)}", highlight=False)
    serve(output, vllm_flags or [])


def _compress(config: CompressConfig, output: Path, shard_size: str, overwrite: bool) -> None:
    from grasp_deploy.checkpoint.plan import PLAN_FILE
    from grasp_deploy.compression.resume import Workspace

    if (output / PLAN_FILE).is_file() and not overwrite:
        raise InputError(
            f"{output} was made with other options, files or release: name another --output, "
            "or replace it with --overwrite"
        )
    resume = not overwrite and Workspace.begun_with(output, config)
    record = run_compress(
        config, output, shard_size, resume, overwrite, "give the same command again"
    )
    print_compressed(record, output)


def check_before_compressing(config: CompressConfig, vllm_arguments: Sequence[str]) -> None:
    """Raise InputError for what vLLM would refuse after the work: its absence, a port, a size."""
    from grasp_deploy.engine.flags import read_flags
    from grasp_deploy.engine.serve import HOST, PORT, check_port
    from grasp_deploy.engine.vllm_process import installed_platform

    installed_platform()
    flags = read_flags(vllm_arguments)
    if flags.uds is None:
        check_port(flags.host or HOST, flags.port or PORT)
    size = flags.tensor_parallel_size
    if any(multiple % size for multiple in config.effective_multiples):
        raise InputError(
            f"vLLM is to split the model among {size} workers, but layers need not divide by "
            f"{size}: add --tensor-parallel {size} before the --"
        )


def default_output(config: CompressConfig) -> Path:
    """A folder in the working directory, named after the model and its budget."""
    model = Path(config.model).resolve().name if Path(config.model).is_dir() else config.model
    name = next(name for name in BUDGETS if getattr(config, name) is not None)
    return Path(re.sub(r"[^\w.-]+", "-", f"{model}-{name}-{getattr(config, name)}"))


def is_done(config: CompressConfig, output: Path) -> bool:
    """True if the output is what this config would make: same files, options, seed and release."""
    from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
    from grasp_deploy.compression.prepare import prepare
    from grasp_deploy.compression.result import is_result_of

    if not (output / PLAN_FILE).is_file():
        return False
    try:
        plan = load_plan(output / PLAN_FILE)
    except InputError:  # damaged, or of another release
        return False
    return is_result_of(plan, prepare(config))
