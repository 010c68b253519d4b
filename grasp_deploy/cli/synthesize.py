"""`synthesize`: a pruned config.json to measure with, without any weights."""

from __future__ import annotations

from typing import Annotated

import typer

from grasp_deploy.cli.console import print_json, stdout
from grasp_deploy.cli.options import Json, Output, Revision
from grasp_deploy.config.compress_config import CompressConfig


def synthesize_command(
    config: Annotated[str, typer.Argument(help="config.json, folder or hub id of a dense model.")],
    *,
    output: Output,
    keep: Annotated[float, typer.Option(help="Share of the prunable cost to keep, such as 0.6.")],
    kv_keep: Annotated[
        float | None,
        typer.Option(help="Share of all KV groups to keep; FFN channels take what is left."),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(help="parameters, kv-bytes, memory, or your own package.module:function."),
    ] = None,
    cached_tokens: Annotated[
        int | None, typer.Option(help="Tokens that the deployment caches; for --cost memory.")
    ] = None,
    targets: Annotated[str, typer.Option(help="Units to remove: both, ffn or kv.")] = "both",
    ffn_multiple: Annotated[
        int, typer.Option(help="Each layer keeps a multiple of so many channels.")
    ] = 1,
    kv_multiple: Annotated[
        int, typer.Option(help="Each layer keeps a multiple of so many KV groups.")
    ] = 1,
    tensor_parallel: Annotated[
        int, typer.Option(help="Tensor-parallel size that every layer must divide by.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Draws the mask.")] = 0,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Prune a config.json by a random mask under a budget, for benches with --random-weights."""
    budget = CompressConfig(
        model=config,
        revision=revision,
        keep=keep,
        cost=cost,
        cached_tokens=cached_tokens,
        targets=targets,  # type: ignore[arg-type]  # the config checks it
        ffn_multiple=ffn_multiple,
        kv_multiple=kv_multiple,
        tensor_parallel=tensor_parallel,
        seed=seed,
    )
    from grasp_deploy.checkpoint.inspection import inspect_model
    from grasp_deploy.compression.synthesize import synthesize

    synthesize(budget, output, kv_keep=kv_keep)
    record = inspect_model(str(output))
    if as_json:
        print_json(record)
        return
    from grasp_deploy.report.tables import footprint_table, ratio_table

    stdout.print(ratio_table(record["ratios"]))
    stdout.print(footprint_table({"dense": record["dense"], "pruned": record}))
    if kv_keep is None and targets == "both":
        stdout.print("units drawn at random; compress keeps most KV groups: try --kv-keep 0.9")
    stdout.print(f"wrote {output}", soft_wrap=True, markup=False)
