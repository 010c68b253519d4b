"""Commands on a checkpoint: `inspect`, `verify`, `export` and `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grasp_deploy.cli.console import CHECK_FAILED, print_json, print_line, stderr, stdout
from grasp_deploy.cli.options import (
    Json,
    Output,
    Overwrite,
    Revision,
    ShardSize,
    VllmFlags,
)
from grasp_deploy.config.option import DEVICE_HELP
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import format_bytes, parse_bytes

if TYPE_CHECKING:
    from torch import Tensor

PrunedFolder = Annotated[Path, typer.Argument(help="Folder of a pruned checkpoint.")]
PARALLEL = ("tensor_parallel", "pipeline_parallel")
NOT_PROVEN = 3  # exit code
ROUNDING_TOKENS = 512  # of a sequence
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
    pipeline_parallel: Annotated[
        int | None, typer.Option(min=1, help="Exit code 1 unless the layers make so many stages.")
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Count the cached tokens that fit, such as in 20GiB.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict a model's footprint from its config.json, and the type of weights beside it."""
    from grasp_deploy.checkpoint.footprint import inspect_model

    memory_bytes = None if gpu_memory is None else parse_bytes(gpu_memory, "--gpu-memory")
    record = inspect_model(model, revision, tensor_parallel, pipeline_parallel, memory_bytes)
    if as_json:
        print_json(record)
    else:
        _print_inspected(record)
    if not all(record[name]["fits"] for name in PARALLEL if name in record):
        raise typer.Exit(CHECK_FAILED)


def _print_inspected(record: dict[str, Any]) -> None:
    from grasp_deploy.report.tables import footprint_table, layer_table

    if record["pruned"]:
        stdout.print(layer_table(record["dense"], record))
        stdout.print(footprint_table({"dense": record["dense"], "pruned": record}))
    else:
        stdout.print(footprint_table({"dense": record}))
    if "quantization" in record:
        print_line(f"quantised ({record['quantization']}): where its files are absent, as if plain")
    for name in PARALLEL:
        if name in record:
            print_line(record[name]["detail"])


def verify_command(
    directory: PrunedFolder,
    *,
    model: Annotated[
        str | None, typer.Option(help="Base model. Default: the one in the plan.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="transformers; or vllm, to compare the served model as well.")
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

    if engine not in ("transformers", "vllm"):
        raise InputError(f"--engine {engine} is unknown: use transformers or vllm")
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


def export_command(
    plan: Annotated[Path, typer.Argument(help="plan.grasp of a compression.")],
    *,
    model: Annotated[str, typer.Option(help="Hub id or folder of the plan's base model.")],
    output: Output,
    revision: Revision = None,
    base_model_id: Annotated[
        str | None, typer.Option(help="Hub id of MODEL for the model card. Default: the plan's.")
    ] = None,
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
    with stage_bars(stderr) as show:
        pruned = export(
            loaded,
            model,
            output,
            revision=revision,
            base_model_id=base_model_id,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            on_progress=lambda done, of: show({"stage": "export", "step": done, "steps": of}),
        )
    if as_json:
        print_json({"output": str(output), **footprint(pruned).as_dict()})
    else:
        print_line(f"wrote {output}")


def quantize_command(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a model, pruned or dense.")],
    *,
    scheme: Annotated[
        Literal["fp8", "int8", "w4a16"],
        typer.Option(help="8-bit weights and activations, or 4-bit weights."),
    ],
    output: Output,
    calibration: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT[@SPLIT][=WEIGHT]",
            help="Of w4a16: learn the rounding on text, by AutoRound. May be repeated. Default: "
            "round to the nearest.",
        ),
    ] = None,
    calibration_sequences: Annotated[
        int, typer.Option(min=1, help="Sequences of 512 tokens; time follows them.")
    ] = 128,
    shard_size: ShardSize = "4GB",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Quantise the matrices of a model's layers: the last step, behind recovery.

    By compressed-tensors, which vLLM serves. Embeddings and output projection stay as they are.
    """
    from grasp_deploy.checkpoint.footprint import footprint
    from grasp_deploy.checkpoint.read.source import resolve_model
    from grasp_deploy.checkpoint.write.quantize import quantize
    from grasp_deploy.report.progress import stage_bars

    directory, token_ids = resolve_model(model).directory, None
    if calibration:
        token_ids = _rounding_text(directory, scheme, calibration, calibration_sequences)
    with stage_bars(stderr) as show:
        shape = quantize(
            directory,
            scheme,
            output,
            token_ids=token_ids,
            overwrite=overwrite,
            shard_bytes=parse_bytes(shard_size, "--shard-size"),
            on_progress=lambda done, of: show({"stage": "export", "step": done, "steps": of}),
        )
    if as_json:
        print_json({"output": str(output), **footprint(shape).as_dict()})
    else:
        print_line(
            f"wrote {output}, {format_bytes(shape.weight_bytes)} of weights; measure it beside the "
            f"plain one (grasp-deploy evaluate compare {model} {output} --data TEXT), then "
            f"serve it: grasp-deploy serve {output}"
        )


def _rounding_text(directory: Path, scheme: str, texts: list[str], count: int) -> Tensor:
    from grasp_deploy.checkpoint.read.loading import load_tokenizer
    from grasp_deploy.data import calibration_sources, read_calibration

    if scheme != "w4a16":
        raise InputError(f"--calibration has no effect on --scheme {scheme}: leave it out")
    sources = calibration_sources(texts)
    if any(source.is_own for source in sources):
        raise InputError("quantize cannot let the model write text: leave self out")
    return read_calibration(load_tokenizer(directory), sources, ROUNDING_TOKENS, count).token_ids


def serve_command(
    directory: Annotated[Path, typer.Argument(help="Folder of a checkpoint, pruned or dense.")],
    vllm_flags: VllmFlags = None,
) -> None:
    """Check a checkpoint, then serve it with `vllm serve` on 127.0.0.1."""
    from grasp_deploy.engine.serve import serve

    serve(directory, vllm_flags or [])
