"""Commands on a checkpoint that is there, such as `inspect`, `verify` and `serve`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from grasp_deploy.cli.console import CHECK_FAILED, print_json, print_line, stderr, stdout
from grasp_deploy.cli.options import Json, Revision, VllmFlags
from grasp_deploy.config.option import DEVICE_HELP
from grasp_deploy.files.sizes import parse_bytes

PrunedFolder = Annotated[Path, typer.Argument(help="Folder of a pruned checkpoint.")]
NOT_PROVEN = 3  # exit code
OUTCOMES = {
    "proven": "proven: the checkpoint is what its plan says, given the base model",
    "not proven": "NOT PROVEN: nothing is wrong, and nobody can vouch for all of it",
    "wrong": "wrong: the folder is not what its manifest and plan say, and the rest was not looked "
    "at; put back what was changed, or make the folder again with grasp-deploy export",
}


def inspect_command(
    model: Annotated[str, typer.Argument(help="Hub id or folder of a model, dense or pruned.")],
    *,
    revision: Revision = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="Exit code 1 unless all layers divide by this size.")
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Count the cached tokens that fit, such as in 20GiB.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict a model's footprint from its config.json, and the type of weights beside it."""
    from grasp_deploy.checkpoint.footprint import inspect_model

    memory_bytes = None if gpu_memory is None else parse_bytes(gpu_memory, "--gpu-memory")
    record = inspect_model(model, revision, tensor_parallel, memory_bytes)
    if as_json:
        print_json(record)
    else:
        _print_inspected(record)
    if "tensor_parallel" in record and not record["tensor_parallel"]["fits"]:
        raise typer.Exit(CHECK_FAILED)


def _print_inspected(record: dict[str, Any]) -> None:
    from grasp_deploy.report.tables import footprint_table, layer_table

    if record["pruned"]:
        stdout.print(layer_table(record["dense"], record))
        stdout.print(footprint_table({"dense": record["dense"], "pruned": record}))
    else:
        stdout.print(footprint_table({"dense": record}))
    if "quantization" in record:
        absent = ", sized as if plain by config.json alone: name a folder that holds its weights"
        absent *= "as_if_plain" in record
        print_line(f"quantised by {record['quantization']}{absent}")
    if "tensor_parallel" in record:
        print_line(record["tensor_parallel"]["detail"])


def verify_command(
    directory: PrunedFolder,
    *,
    model: Annotated[
        str | None, typer.Option(help="Base model. Default: the one in the plan.")
    ] = None,
    engine: Annotated[
        Literal["transformers", "vllm"],
        typer.Option(help="transformers; or vllm, to serve it, or the --plain one, as well."),
    ] = "transformers",
    without_base: Annotated[
        bool, typer.Option("--without-base", help="Skip checks against the base model's weights.")
    ] = False,
    plain: Annotated[
        Path | None, typer.Option(help="Of a quantised checkpoint: the plain one it comes from.")
    ] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    as_json: Json = False,
) -> None:
    """Prove that a checkpoint is the model that was evaluated.

    The exit code is 0 if it is, 1 if something is wrong, and 3 if nothing is wrong but nobody can
    vouch for all of it, as always with --without-base.
    """
    checks = run_verify(directory, model, engine, device, without_base, plain)
    from grasp_deploy.checkpoint.verify import worst

    outcome = worst(check["outcome"] for check in checks)
    ok = outcome == "proven"
    if as_json:
        record = {"directory": str(directory), "outcome": outcome, "ok": ok, "checks": checks}
        print_json(record)
    else:
        from grasp_deploy.report.tables import check_table

        stdout.print(check_table(checks))
        print_line(OUTCOMES[outcome])
    if not ok:
        raise typer.Exit(NOT_PROVEN if outcome == "not proven" else CHECK_FAILED)


def run_verify(
    directory: Path,
    model: str | None,
    engine: str,
    device: str,
    without_base: bool = False,
    plain: Path | None = None,
) -> list[dict[str, Any]]:
    """Run all checks, with a status line; returns each check as `verify --json` prints it."""
    from grasp_deploy.checkpoint.limits import installed_platform
    from grasp_deploy.checkpoint.read.loading import resolve_device
    from grasp_deploy.checkpoint.verify import verify
    from grasp_deploy.engine.offline import greedy_tokens

    # A vLLM that is missing, or cannot run the model, is an error, not a failed check.
    platform = installed_platform() if engine == "vllm" else None
    checks = []
    with stderr.status("verifying") as status:
        for check in verify(
            directory,
            model,
            without_base=without_base,
            plain=plain,
            served=greedy_tokens if platform else None,
            platform=platform,
            device=resolve_device(device),
        ):
            status.update(f"verifying: {check.name} done")
            checks.append({**vars(check), "ok": check.ok})
    return checks


def serve_command(
    model: Annotated[
        str,
        typer.Argument(help="Folder or hub id (with --revision, if need be), pruned or dense."),
    ],
    vllm_flags: VllmFlags = None,
) -> None:
    """Check a checkpoint, then serve it with `vllm serve` on 127.0.0.1."""
    from grasp_deploy.checkpoint.limits import installed_platform
    from grasp_deploy.checkpoint.read.source import resolve_model
    from grasp_deploy.engine.flags import read_flags
    from grasp_deploy.engine.serve import serve

    installed_platform()  # without it nothing is fetched
    flags = vllm_flags or []
    source = resolve_model(model, read_flags(flags).revision)
    name = ["--served-model-name", model] if source.revision else []
    serve(source.directory, [*name, *flags])
