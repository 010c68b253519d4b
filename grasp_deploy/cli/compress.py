"""Commands that make a smaller model of a dense one: `compress`, `up`, `synthesize` and `demo`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from grasp_deploy.cli.checkpoint import run_verify
from grasp_deploy.cli.compressed import print_compressed, print_family
from grasp_deploy.cli.config_options import takes_config
from grasp_deploy.cli.console import (
    CHECK_FAILED,
    is_under_torchrun,
    print_error,
    print_json,
    print_line,
    stderr,
    stdout,
)
from grasp_deploy.cli.dry_run import DeviceMemory, DryRun, show_dry_run
from grasp_deploy.cli.options import (
    Command,
    HiddenShardSize,
    Json,
    Output,
    Overwrite,
    VllmFlags,
    field_parameters,
    read_values,
    running_option,
    with_parameters,
)
from grasp_deploy.cli.ranks import joined_ranks
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.rules import BUDGETS
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import parse_bytes

Resume = Annotated[
    bool,
    running_option(
        "--resume", help="Continue an unfinished run. With --overwrite: one that replaces OUTPUT."
    ),
]
OutputUnlessDry = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder to write; not needed by --dry-run.")
]
OutputOrNamed = Annotated[
    Path | None, typer.Option("--output", "-o", help="Default: named after model and budget.")
]
DenseConfig = Annotated[str, typer.Argument(help="config.json, folder or hub id of a dense model.")]
KvKeep = Annotated[
    float | None, typer.Option(help="Share of all KV groups to keep; FFN channels take the rest.")
]
BUDGET_FIELDS = (
    *("keep", "cost", "cached_tokens", "batch", "context", "targets"),
    *("ffn_multiple", "kv_multiple"),
    *("tensor_parallel", "seed", "revision"),
)


@takes_config
def compress_command(
    *,
    config: CompressConfig,
    output: OutputUnlessDry = None,
    dry_run: DryRun = False,
    device_memory: DeviceMemory = None,
    shard_size: HiddenShardSize = "4GB",
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compress MODEL under one global budget into a smaller dense checkpoint.

    Several shares, as in --keep 0.8,0.6,0.4, make a family: OUTPUT then holds a checkpoint of each.
    """
    if dry_run:
        config = measured(config)
        show_dry_run(config, device_memory, as_json)
        return
    if output is None:
        raise InputError(
            "compress writes a checkpoint: give --output, or --dry-run for what it would need"
        )
    if device_memory is not None:
        raise InputError("--device-memory is for --dry-run alone: add that, or drop it")
    config = measured(config, output if resume else None)
    with joined_ranks(config, output=output, resume=resume, overwrite=overwrite):
        record = run_compress(config, output, shard_size, resume, overwrite)
    if as_json:
        print_json(record)
    elif config.family:
        print_family(record["members"], output)
    else:
        print_compressed(record, config)


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

    if config.family:
        raise InputError(
            f"up serves one model, and --keep names {len(config.family)} budgets: give one, or "
            "make the family with compress and serve a member"
        )
    flags, output = vllm_flags or [], output or default_output(config)
    _check_before_compressing(config, flags)
    config = measured(config, None if overwrite else output)
    if record := compress_unless_done(config, output, shard_size, overwrite):
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


def takes_budget(command: Command) -> Command:
    """Give a command with a parameter `budget` some options of a compression, as a dictionary."""
    keep, *others = field_parameters(CompressConfig, BUDGET_FIELDS)
    parameters = [keep.replace(default=inspect.Parameter.empty), *others]  # required here
    return with_parameters(command, "budget", parameters, partial(read_values, CompressConfig))


@takes_budget
def synthesize_command(
    config: DenseConfig,
    *,
    budget: dict[str, Any],
    output: Output,
    kv_keep: KvKeep = None,
    as_json: Json = False,
) -> None:
    """Prune a config.json by a random mask under a budget, for benches with --random-weights."""
    try:
        checked = measured(CompressConfig(model=config, **budget))
    except InputError as error:  # --set targets is an option of its own here
        raise InputError(str(error).replace("--set targets=", "--targets ")) from None
    from grasp_deploy.checkpoint.footprint import inspect_model
    from grasp_deploy.compression.synthesize import synthesize
    from grasp_deploy.report.tables import footprint_table, ratio_table

    synthesize(checked, output, kv_keep=kv_keep)
    record = inspect_model(str(output))
    if as_json:
        print_json(record)
        return
    stdout.print(ratio_table(record["ratios"]))
    stdout.print(footprint_table({"dense": record["dense"], "pruned": record}))
    print_line(f"wrote {output}")


def demo_command() -> None:
    """Compress, verify and serve the small model inside this package; print dense and pruned."""
    from grasp_deploy.demo.run import PROMPT, run_demo
    from grasp_deploy.report.progress import stage_bars
    from grasp_deploy.report.tables import comparison_table

    with stage_bars(stderr) as on_progress:
        dense, pruned, completion = run_demo(on_progress, say=stderr.print)
    stdout.print(comparison_table(dense, pruned))
    print_line(f"prompt:     {PROMPT}\ncompletion: {completion}")


def default_output(config: CompressConfig) -> Path:
    """A folder in the working directory, named after the model and its budget."""
    model = Path(config.model).resolve().name if Path(config.model).is_dir() else config.model
    name = next(name for name in BUDGETS if getattr(config, name) is not None)
    return Path(re.sub(r"[^\w.-]+", "-", f"{model}-{name}-{getattr(config, name)}"))


def compress_unless_done(
    config: CompressConfig,
    output: Path,
    shard_size: str,
    overwrite: bool,
) -> dict[str, Any] | None:
    """Compress, going on with an unfinished run; None where OUTPUT is already what comes of it."""
    from grasp_deploy.checkpoint.plan import PLAN_FILE
    from grasp_deploy.compression.resume import Workspace

    if overwrite or not (output / PLAN_FILE).is_file():
        resume = not overwrite and Workspace.begun_with(output, config)
        return run_compress(config, output, shard_size, resume, overwrite)
    if not is_done(config, output):
        raise InputError(
            f"{output} is damaged, or was made with other options, files or release: name another "
            "--output, or replace it with --overwrite"
        )
    stderr.print(f"{output} is already the result of these options", soft_wrap=True)
    return None


def is_done(config: CompressConfig, output: Path) -> bool:
    """True if the output is what this config would make: same files, options, seed and release."""
    from grasp_deploy.compression.prepare import prepare
    from grasp_deploy.compression.result import finished_plan

    return finished_plan(output, prepare(config)) is not None


def measured(config: CompressConfig, begun: Path | None = None) -> CompressConfig:
    """The config with the times that its budget needs, of the run `begun` there or measured now."""
    if config.cost_model != "latency":
        return config
    from grasp_deploy.bench.times import with_times
    from grasp_deploy.report.progress import stage_bars

    alone = not is_under_torchrun()
    with stage_bars(stderr) as on_progress:
        config, told = with_times(config, begun, on_progress, measures=alone)
    if alone:
        stderr.print(f"times: {told}", soft_wrap=True, highlight=False)
    return config


def _check_before_compressing(config: CompressConfig, vllm_arguments: Sequence[str]) -> None:
    """Raise InputError for what vLLM would refuse after the work: its absence, a port, a size."""
    from grasp_deploy.checkpoint.limits import installed_platform
    from grasp_deploy.engine.flags import read_flags
    from grasp_deploy.engine.serve import HOST, PORT, check_port

    installed_platform()
    flags = read_flags(vllm_arguments)
    if flags.uds is None:
        check_port(flags.host or HOST, flags.port or PORT)
    size = flags.tensor_parallel_size
    if any(multiple % size for multiple in config.multiples()):
        raise InputError(
            f"vLLM is to split the model among {size} workers, but layers need not divide by "
            f"{size}: add --tensor-parallel {size} before the --"
        )


def run_compress(
    config: CompressConfig,
    output: Path,
    shard_size: str,
    resume: bool,
    overwrite: bool,
) -> dict[str, Any]:
    """Compress with progress bars; the record that `compress --json` prints."""
    from grasp_deploy.compression.bound import compress_within
    from grasp_deploy.compression.compress import compress
    from grasp_deploy.compression.families import compress_family
    from grasp_deploy.compression.memory import passes_of
    from grasp_deploy.compression.result import compression_record
    from grasp_deploy.compression.resume import Workspace
    from grasp_deploy.compression.run_options import RunOptions
    from grasp_deploy.files.progress import ignore_progress
    from grasp_deploy.pruning.ranks import is_lead
    from grasp_deploy.report.progress import stage_bars

    shard_bytes = parse_bytes(shard_size, "--shard-size")
    if resume and overwrite and is_lead() and Workspace.begun_with(output, config):
        stderr.print("going on with the unfinished run; --overwrite alone would start it over")
    try:
        expected = {} if config.walks else passes_of(config)
        with stage_bars(stderr, expected) if is_lead() else nullcontext(ignore_progress) as show:
            options = RunOptions(output, resume, overwrite, shard_bytes, show)
            if config.family:
                return {"members": [*map(compression_record, compress_family(config, options))]}
            make = compress_within if config.walks else compress
            return compression_record(make(config, options))
    except KeyboardInterrupt:
        if is_lead() and (config.family or Workspace.begun_with(output, config)):
            go_on = "give the same command again (compress: with --resume)"
            stderr.print(f"what was learnt is kept; to go on, {go_on}", soft_wrap=True)
        raise
