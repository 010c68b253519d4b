"""`evaluate`: what a model can do."""

from __future__ import annotations

from typing import Annotated

import typer

from grasp_deploy.cli.console import print_json, stderr, stdout
from grasp_deploy.cli.options import MODEL_HELP, Device, Json, Revision


def perplexity_command(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    *,
    data: Annotated[
        str, typer.Option(help="wikitext2, ptb, c4, a local file, or hf:NAME[:CONFIG].")
    ],
    split: Annotated[str | None, typer.Option(help="Rows to use, such as 'train[900:]'.")] = None,
    column: Annotated[str | None, typer.Option(help="Column that holds the text.")] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens in a block. Default: 2048, or what the model takes."),
    ] = None,
    sequences: Annotated[int, typer.Option(min=1, help="How many blocks.")] = 80,
    batch_size: Annotated[int, typer.Option(min=1, help="Blocks in a batch.")] = 1,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    as_json: Json = False,
) -> None:
    """Perplexity on blocks of text without overlap, in float32."""
    from grasp_deploy.checkpoint.loading import load, load_tokenizer
    from grasp_deploy.checkpoint.shapes import read_config
    from grasp_deploy.checkpoint.source import resolve_model
    from grasp_deploy.data import evaluation_split, read_blocks
    from grasp_deploy.evaluate.perplexity import perplexity
    from grasp_deploy.report.progress import stage_bars

    directory = resolve_model(model, revision).directory
    tokenizer, split = load_tokenizer(directory), evaluation_split(data, split)
    if sequence_length is None:
        positions = read_config(directory).get("max_position_embeddings") or 2048
        sequence_length = min(2048, positions)
    blocks = read_blocks(tokenizer, data, split, column, sequence_length, sequences)
    loaded = load(directory, device=device, dtype=dtype)
    with stage_bars(stderr) as watch:
        result = perplexity(
            loaded,
            blocks,
            batch_size,
            lambda done, loss: watch(
                {"stage": "perplexity", "step": done, "steps": len(blocks.token_ids), "loss": loss}
            ),
        )
    if as_json:
        print_json({"model": model, **result.as_dict()})
    else:
        line = f"perplexity {result.perplexity:.3f} on {result.tokens:,} tokens of {data}"
        stdout.print(line, soft_wrap=True, markup=False)
        stdout.print(f"counted: {result.tokens_counted}")
