"""`evaluate`: what a model can do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grasp_deploy.cli.console import print_error, print_json, stderr, stdout
from grasp_deploy.cli.options import MODEL_HELP, Device, Dtype, Json, Revision
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def perplexity_command(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    *,
    data: Annotated[
        str,
        typer.Option(
            metavar="TEXT[@SPLIT]", help="wikitext2, ptb, c4, a local file, or hf:NAME[:CONFIG]."
        ),
    ],
    split: Annotated[str | None, typer.Option(help="Rows to use, such as 'train[900:]'.")] = None,
    column: Annotated[
        str | None, typer.Option(help="Column that holds the text, or chats as lists of messages.")
    ] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens in a block. Default: 2048, or what the model takes."),
    ] = None,
    sequences: Annotated[
        int, typer.Option(min=1, help="How many blocks, or documents with --per-document.")
    ] = 80,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Let windows of --sequence-length overlap, each scoring only its last tokens, "
            "this many. Default: no overlap.",
            show_default=False,
        ),
    ] = None,
    per_document: Annotated[
        bool, typer.Option("--per-document", help="Each document alone instead of running text.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Blocks in a batch.")] = 1,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Perplexity on blocks of text, sliding windows or single documents."""
    from grasp_deploy.checkpoint.format.shapes import read_config
    from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
    from grasp_deploy.checkpoint.read.source import resolve_model
    from grasp_deploy.data import evaluation_source, read_blocks, read_token_documents
    from grasp_deploy.evaluate.perplexity import document_perplexity, perplexity
    from grasp_deploy.report.progress import stage_bars

    directory = resolve_model(model, revision).directory
    tokenizer, source = load_tokenizer(directory), evaluation_source(data, split, column)
    if sequence_length is None:
        positions = read_config(directory).get("max_position_embeddings") or 2048
        sequence_length = min(2048, positions)
    if stride is not None and stride > sequence_length:
        raise InputError(
            f"--stride {stride} would leave out tokens between windows of {sequence_length}: use "
            f"{sequence_length} or less"
        )
    if per_document:
        documents = read_token_documents(tokenizer, source, sequences)
        calibrated_on = _calibrated_share(directory, documents.token_ids)
    else:
        blocks = read_blocks(tokenizer, source, sequence_length, sequences)
        calibrated_on = _calibrated_share(directory, [blocks.token_ids.flatten()])
    loaded = load(directory, device=device, dtype=dtype)
    with stage_bars(stderr) as on_progress:
        more: dict[str, Any] = {
            "batch_size": batch_size,
            "on_batch": lambda done, steps, loss: on_progress(
                {"stage": "perplexity", "step": done, "steps": steps, "loss": loss}
            ),
            "stride": stride,
            "tokenizer": tokenizer,
        }
        if per_document:
            result = document_perplexity(loaded, documents, sequence_length, **more)
        else:
            result = perplexity(loaded, blocks, **more)
    record = {**result.as_dict(), "calibrated_on_share": calibrated_on}
    if as_json:
        print_json({"model": model, **record})
    else:
        for line in lines(record, data):
            stdout.print(line, soft_wrap=True, markup=False, highlight=False)


def _calibrated_share(directory: Path, texts: list[Tensor]) -> float | None:
    """The share of texts that a checkpoint was calibrated on, told on stderr where it matters.

    None where that is unknown: for dense models, and for plans that hold no fingerprint.
    """
    from grasp_deploy.checkpoint.plan import calibrated_beside
    from grasp_deploy.data.overlap import NOTEWORTHY_SHARE, calibrated_share

    calibrated = calibrated_beside(directory)
    if calibrated is None:
        return None
    share = calibrated_share(texts, calibrated)
    if share >= NOTEWORTHY_SHARE:
        part = "all" if share == 1 else f"at least {int(share * 100)} %"
        print_error(
            "warning",
            f"{part} of this text was calibrated on: the perplexity flatters the pruned model; "
            "evaluate on other text",
        )
    return share


def lines(record: dict[str, Any], data: str) -> list[str]:
    """A perplexity record in words."""
    interval = record["perplexity_interval"]
    within = f" (95 %: {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    said = [
        f"perplexity {record['perplexity']:.3f}{within} on {record['tokens']:,} tokens of {data}"
    ]
    if record["bits_per_byte"] is not None:
        said.append(f"bits per byte {record['bits_per_byte']:.4f} on {record['bytes']:,} bytes")
    if "mean_over_documents" in record:
        mean = record["mean_over_documents"]["perplexity"]
        said.append(f"each document counted once, however long: {mean:.3f}")
    return [*said, f"counted: {record['tokens_counted']}"]
