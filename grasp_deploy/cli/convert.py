"""Commands that write a model in another form: `export`, `quantize`, `adapter` and `gguf`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from grasp_deploy.cli.console import print_json, print_line, stderr
from grasp_deploy.cli.options import Json, Output, Overwrite, Revision, ShardSize
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import counts_of
from grasp_deploy.files.sizes import format_bytes, parse_bytes
from grasp_deploy.stats.wording import counted

if TYPE_CHECKING:
    from torch import Tensor

    from grasp_deploy.checkpoint.format.shapes import ModelShape
    from grasp_deploy.data import TextSource

SEQUENCES, ROUNDING_TOKENS = 128, 512  # by default; of each


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
            on_progress=counts_of("export", show),
        )
    if as_json:
        print_json({"output": str(output), **footprint(pruned).as_dict()})
    else:
        print_line(f"wrote {output}")


def quantize_command(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a model, pruned or dense.")],
    *,
    revision: Revision = None,
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
        int | None,
        typer.Option(min=1, help="Sequences of at most 512 tokens; time follows. Default: 128."),
    ] = None,
    shard_size: ShardSize = "4GB",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Quantise the matrices of a model's layers: the last step, behind recovery.

    By compressed-tensors, which vLLM serves. Embeddings and output projection stay as they are.
    """
    from grasp_deploy.checkpoint.footprint import footprint
    from grasp_deploy.checkpoint.read.source import path_of, resolve_model
    from grasp_deploy.checkpoint.write.quantize import check_place, quantize
    from grasp_deploy.report.progress import stage_bars

    shard_bytes, texts = parse_bytes(shard_size, "--shard-size"), calibration or []
    sources = _rounding_sources(scheme, texts, calibration_sequences)
    check_place(path_of(model), scheme, output, overwrite=overwrite)
    directory, count = resolve_model(model, revision).directory, calibration_sequences or SEQUENCES
    with stage_bars(stderr) as show:
        shape = quantize(
            directory,
            scheme,
            output,
            token_ids=_rounding_ids(directory, sources, count),
            text=f"{counted(count, 'sequence')} of {' and '.join(s.label for s in sources)}",
            overwrite=overwrite,
            shard_bytes=shard_bytes,
            on_progress=counts_of("export", show),
        )
    if as_json:
        print_json({"output": str(output), **footprint(shape).as_dict()})
    else:
        names = shlex.join([model, str(output)])
        print_line(
            f"wrote {output}, {format_bytes(shape.weight_bytes)} of weights; measure it beside the "
            f"plain one (grasp-deploy evaluate compare {names} --data TEXT), then "
            f"serve it: grasp-deploy serve {shlex.quote(str(output))}"
        )
        if scheme == "w4a16" and (told := _rounded_to_the_nearest(shape, texts)):
            print_line(told)


def _rounded_to_the_nearest(shape: ModelShape, texts: list[str]) -> str:
    """What to say of four bits whose rounding is not learnt; "" where all is."""
    from grasp_deploy.checkpoint.quantised import unlearnt

    if not texts:
        return "rounded to the nearest; with --calibration TEXT four bits lose less"
    if not (left := unlearnt(shape)):
        return ""
    return f"rounded to the nearest: {left} of the matrices; AutoRound wants rows that 32 divides"


def _rounding_sources(scheme: str, texts: list[str], given: int | None) -> list[TextSource]:
    """The texts to learn a rounding on; InputError, before a model is fetched, if none can be."""
    from grasp_deploy.checkpoint.write.rounding import auto_round
    from grasp_deploy.data import calibration_sources

    if not texts and given:
        raise InputError(
            "--calibration-sequences has no effect without --calibration: name a text as well, or "
            "leave it out"
        )
    if not texts:
        return []
    if scheme != "w4a16":
        raise InputError(f"--calibration has no effect on --scheme {scheme}: leave it out")
    sources = calibration_sources(texts)
    if any(source.is_own for source in sources):
        raise InputError("quantize cannot let the model write text: leave self out")
    auto_round()
    return sources


def _rounding_ids(directory: Path, sources: list[TextSource], count: int) -> Tensor | None:
    """`(n, T)` tokens to learn a rounding on; None without texts."""
    from grasp_deploy.checkpoint.format.shapes import read_config
    from grasp_deploy.checkpoint.read.loading import check_tokens, load_tokenizer
    from grasp_deploy.checkpoint.read.source import fewest_positions
    from grasp_deploy.data import read_calibration

    if not sources:
        return None
    length = fewest_positions([directory], ROUNDING_TOKENS)
    text = read_calibration(load_tokenizer(directory), sources, length, count)
    check_tokens(text.token_ids, read_config(directory))
    return text.token_ids


def adapter_command(
    adapter: Annotated[Path, typer.Argument(help="Folder of a LoRA adapter of the dense model.")],
    *,
    plan: Annotated[Path, typer.Option(help="Folder of a pruned checkpoint of that model.")],
    output: Output,
    as_json: Json = False,
) -> None:
    """Cut a LoRA adapter that was trained on the dense model, so that it fits a pruned checkpoint.

    PEFT loads the result over the checkpoint, and vLLM serves several of them beside it.
    """
    from grasp_deploy.checkpoint.write.adapter import LORA_RANKS, cut_adapter

    matrices, rank, is_exact = cut_adapter(adapter, plan, output)
    if as_json:
        print_json({"output": str(output), "matrices": matrices, "exact": is_exact})
        return
    plan = plan.parent if plan.is_file() else plan
    flags = ["--enable-lora", "--lora-modules", f"NAME={output}", "--max-loras", "2"]
    if rank > LORA_RANKS[0]:
        allowed = next((each for each in LORA_RANKS if each >= rank), rank)
        flags += ["--max-lora-rank", str(allowed)]
    command = shlex.join(["grasp-deploy", "serve", str(plan), "--", *flags])
    print_line(f"wrote {output}, {matrices} matrices cut; serve it: {command}")
    if not is_exact:
        print_line(
            f"an approximation: weights of {plan} were refitted or recovered without the adapter, "
            "so measure it on its own task"
        )


def gguf_command(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a model, pruned or dense.")],
    *,
    revision: Revision = None,
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
    from grasp_deploy.checkpoint.write.gguf_file import check_place, write_gguf
    from grasp_deploy.report.progress import stage_bars

    check_place(output, overwrite=overwrite)
    with stage_bars(stderr) as show:
        source = resolve_model(model, revision)
        write_gguf(
            source.directory,
            output,
            kind,
            name=source.name if source.revision else None,
            overwrite=overwrite,
            on_progress=counts_of("export", show),
        )
    size_bytes = output.stat().st_size
    if as_json:
        print_json({"output": str(output), "size_bytes": size_bytes})
    else:
        print_line(
            f"wrote {output}, {format_bytes(size_bytes)}; run it: "
            f"{shlex.join(['llama-server', '--model', str(output)])}"
        )
