"""`inspect` and `verify`: what a checkpoint takes, and whether it is what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from grasp_deploy.cli.console import CHECK_FAILED, print_json, stderr, stdout
from grasp_deploy.cli.options import MODEL_HELP, Device, Json, Revision
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import parse_bytes


def inspect_command(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    *,
    revision: Revision = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="Say whether every layer divides by this size.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Say how many cached tokens fit, such as in 20GiB.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict a model's footprint from its config.json alone, dense beside pruned."""
    from grasp_deploy.checkpoint.inspection import inspect_model

    memory_bytes = parse_bytes(memory, "--memory") if memory else None
    record = inspect_model(model, revision, tensor_parallel, memory_bytes)
    if as_json:
        print_json(record)
        return
    from grasp_deploy.report.tables import footprint_table, layer_table, ratio_table

    columns = {"pruned" if record["pruned"] else "dense": record}
    if record["pruned"]:
        columns = {"dense": record["dense"], **columns}
        stdout.print(layer_table(record["dense"], record), ratio_table(record["ratios"]))
    stdout.print(footprint_table(columns))
    if tensor_parallel:
        stdout.print(record["tensor_parallel"]["detail"])


def verify_command(
    directory: Annotated[Path, typer.Argument(help="Folder of a pruned checkpoint.")],
    *,
    model: Annotated[
        str | None, typer.Option(help="Base model; default: the one that the plan names.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="transformers, or vllm to compare what is served as well.")
    ] = "transformers",
    without_base: Annotated[
        bool, typer.Option("--without-base", help="Leave out what needs the base model's weights.")
    ] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Prove that a checkpoint is the model that was evaluated; exit code 1 if it is not."""
    checks = run_verify(directory, model, engine, device, without_base)
    ok = all(check["ok"] for check in checks)
    if as_json:
        print_json({"directory": str(directory), "ok": ok, "checks": checks})
    else:
        from grasp_deploy.report.tables import check_table

        stdout.print(check_table(checks))
    if not ok:
        raise typer.Exit(CHECK_FAILED)


def run_verify(
    directory: Path, model: str | None, engine: str, device: str, without_base: bool = False
) -> list[dict[str, Any]]:
    from grasp_deploy.checkpoint.read.loading import resolve_device
    from grasp_deploy.checkpoint.verify import verify
    from grasp_deploy.engine.greedy import greedy_tokens
    from grasp_deploy.engine.vllm_process import installed_platform

    if engine not in ("transformers", "vllm"):
        raise InputError(f"--engine {engine} is unknown: use transformers or vllm")
    if engine == "vllm":
        installed_platform()  # that it is absent says nothing about the checkpoint
        stderr.print("vLLM is compared as well: it takes a minute to start", highlight=False)

    def served(served_directory: Path, prompts: list[list[int]], new_tokens: int) -> Any:
        return greedy_tokens(served_directory, prompts, new_tokens).tokens

    with stderr.status("verifying") as status:
        checks = []
        for check in verify(
            directory,
            model,
            without_base=without_base,
            served=served if engine == "vllm" else None,
            device=resolve_device(device),
        ):
            status.update(f"verifying: {check.name} looked at")
            checks.append(vars(check))
    return checks
