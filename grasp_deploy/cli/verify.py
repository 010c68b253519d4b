"""`verify`: proof that a checkpoint is the model that its plan describes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from grasp_deploy.cli.console import CHECK_FAILED, print_json, stderr, stdout
from grasp_deploy.cli.options import Json
from grasp_deploy.config.option import DEVICE_HELP
from grasp_deploy.errors import InputError

Engine = Annotated[
    str, typer.Option(help="transformers; or vllm, to compare the served model as well.")
]
WithoutBase = Annotated[
    bool, typer.Option("--without-base", help="Skip checks against the base model's weights.")
]


def verify_command(
    directory: Annotated[Path, typer.Argument(help="Folder of a pruned checkpoint.")],
    *,
    model: Annotated[
        str | None, typer.Option(help="Base model. Default: the one in the plan.")
    ] = None,
    engine: Engine = "transformers",
    without_base: WithoutBase = False,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
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
    """Run all checks, with a status line; returns each check as `verify --json` prints it."""
    from grasp_deploy.checkpoint.read.loading import resolve_device
    from grasp_deploy.checkpoint.verify import verify
    from grasp_deploy.engine.offline import greedy_tokens
    from grasp_deploy.engine.vllm_process import installed_platform

    if engine not in ("transformers", "vllm"):
        raise InputError(f"--engine {engine} is unknown: use transformers or vllm")
    if engine == "vllm":
        installed_platform()  # a missing vLLM is an error, not a failed check
        stderr.print("vLLM is compared as well: it takes a minute to start", highlight=False)

    checks = []
    with stderr.status("verifying") as status:
        for check in verify(
            directory,
            model,
            without_base=without_base,
            served=greedy_tokens if engine == "vllm" else None,
            device=resolve_device(device),
        ):
            status.update(f"verifying: {check.name} done")
            checks.append(vars(check))
    return checks
