"""Commands that end at a server: `fit`, for a GPU's memory, and `up`."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grasp_deploy.cli.checkpoint import run_verify
from grasp_deploy.cli.compress import measured, run_compress
from grasp_deploy.cli.compressed import print_compressed, serve_command
from grasp_deploy.cli.console import (
    CHECK_FAILED,
    print_error,
    print_json,
    print_line,
    stderr,
    stdout,
)
from grasp_deploy.cli.options import (
    Json,
    OutputUnlessDry,
    Overwrite,
    VllmFlags,
    config_of,
    takes_config,
)
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.rules import BUDGETS
from grasp_deploy.errors import InputError

if TYPE_CHECKING:  # loading it takes a second
    from grasp_deploy.fit.memory import Fit

OutputOrNamed = Annotated[
    Path | None, typer.Option("--output", "-o", help="Default: named after model and budget.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Predict the memory of serving, and write nothing; needs no weights and no text.",
    ),
]

# A deployment on one GPU is the budget, and decides how it is counted.
NOT_FOR_FIT = (
    *("keep", "weights", "kv_per_token", "speedup", "batch"),
    *("cost", "cached_tokens", "tensor_parallel"),
)


@partial(takes_config, without=NOT_FOR_FIT)
def fit_command(
    *,
    given: dict[str, Any],
    output: OutputUnlessDry = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Predict the memory of serving MODEL, and prune it until it fits a GPU.

    Give --gpu-memory, --concurrency and --context. An unfinished run goes on.
    """
    from grasp_deploy.checkpoint.limits import check_vllm_runs, found_platform, installed_platform
    from grasp_deploy.fit.memory import WANTED, predict_fit

    if not given.keys() & {"gpu_memory", "config_file"}:
        raise InputError(WANTED)
    if not (dry_run or output):
        raise InputError("fit writes a checkpoint: give --output, or --dry-run for the sizes alone")
    fit = predict_fit(config := config_of(given))
    if fit.impossible and not dry_run:
        raise InputError(fit.impossible)
    if not as_json:
        _print_fit(fit)
    document = fit.as_dict()
    if output and not dry_run and not fit.fits:
        if platform := found_platform():  # what it refuses is refused before the work
            installed_platform()
            check_vllm_runs(replace(fit.shape, pruned=True), platform)
        document |= _pruned_to_fit(config, output, overwrite, as_json)
    if as_json:
        print_json(document)
    if not any(offer.fits for offer in fit.offers):
        raise typer.Exit(CHECK_FAILED)


def _print_fit(fit: "Fit") -> None:
    """Print what serving takes, the command of each way to make it fit, and the verdict."""
    from grasp_deploy.fit.table import offer_table

    stdout.print(offer_table(fit))
    for offer in fit.offers:
        if offer.fits and not fit.fits:
            print_line(f"{offer.name}: {fit.command(offer)}")
    print_line(fit.verdict)


def _pruned_to_fit(
    config: CompressConfig, output: Path, overwrite: bool, as_json: bool
) -> dict[str, Any]:
    """Prune unless that is done, print how to serve the result, and return its record."""
    from grasp_deploy.checkpoint.footprint import inspect_model

    record = compress_unless_done(config, output, overwrite)
    if not as_json:
        if record:
            print_compressed(record, config)
        else:
            print_line(f"serve it: {serve_command(output, config)}")
    return {"result": inspect_model(str(output))}


@takes_config
def up_command(
    *,
    given: dict[str, Any],
    vllm_flags: VllmFlags = None,
    output: OutputOrNamed = None,
    overwrite: Overwrite = False,
) -> None:
    """Compress MODEL unless that is already done, verify the result, and serve it."""
    from grasp_deploy.engine.serve import check_before_serving, serve

    config = config_of(given)
    if config.family:
        raise InputError(
            f"up serves one model, and --keep names {len(config.family)} budgets: give one, or "
            "make the family with compress and serve a member"
        )
    flags, output = vllm_flags or [], output or default_output(config)
    _check_before_compressing(config, flags)
    config = measured(config, None if overwrite else output)
    if record := compress_unless_done(config, output, overwrite):
        print_compressed(record, config)
    check_before_serving(output, flags)
    checks = run_verify(output, config.model, "transformers", config.device)
    failed = next((check for check in checks if not check["ok"]), None)
    if failed:
        reason = f"{failed['name']}: {failed['detail']}"
        print_error("not served", f"{reason}; make the checkpoint again with --overwrite")
        raise typer.Exit(CHECK_FAILED)
    stderr.print(f"verified: {', '.join(check['name'] for check in checks)}")
    serve(output, flags)


def default_output(config: CompressConfig) -> Path:
    """A folder in the working directory, named after the model and its budget."""
    model = Path(config.model).resolve().name if Path(config.model).is_dir() else config.model
    name = next(name for name in BUDGETS if getattr(config, name) is not None)
    return Path(re.sub(r"[^\w.-]+", "-", f"{model}-{name}-{getattr(config, name)}"))


def compress_unless_done(
    config: CompressConfig, output: Path, overwrite: bool
) -> dict[str, Any] | None:
    """Compress, or go on with an unfinished run; None if OUTPUT already is the result."""
    from grasp_deploy.checkpoint.plan import PLAN_FILE
    from grasp_deploy.compression.prepare import prepare
    from grasp_deploy.compression.result import finished_plan
    from grasp_deploy.compression.resume import Workspace
    from grasp_deploy.compression.run_options import RunOptions

    if overwrite or not (output / PLAN_FILE).is_file():
        resume = not overwrite and Workspace.begun_with(output, config)
        return run_compress(config, output, resume, overwrite)
    if finished_plan(RunOptions(output, resume=True), prepare(config)) is None:
        raise InputError(
            f"{output} is damaged: name another --output, or replace it with --overwrite"
        )
    stderr.print(f"{output} is already the result of these options", soft_wrap=True)
    return None


def _check_before_compressing(config: CompressConfig, vllm_arguments: Sequence[str]) -> None:
    """Raise InputError before the work if it is known that the result could not be served."""
    from grasp_deploy.checkpoint.read.source import resolve_config
    from grasp_deploy.checkpoint.read.validate import config_and_shape, refuse_quantised
    from grasp_deploy.engine.serve import check_before_compressing

    stated, shape = config_and_shape(resolve_config(config.model, config.revision))
    refuse_quantised(shape)
    size = check_before_compressing(stated, shape, vllm_arguments).tensor_parallel_size
    if any(multiple % size for multiple in config.multiples()):
        raise InputError(
            f"vLLM is to split the model among {size} workers, but layers need not divide by "
            f"{size}: add --tensor-parallel {size} before the --"
        )
