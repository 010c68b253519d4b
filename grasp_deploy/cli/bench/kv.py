"""`bench kv`: how many tokens and sequences a memory holds."""

from __future__ import annotations

from typing import Annotated

import typer

from grasp_deploy.cli.bench.options import Dtype, Json, Models, Output, RandomWeights, Seed
from grasp_deploy.cli.bench.output import check_place, command_line, end
from grasp_deploy.cli.console import stderr
from grasp_deploy.files.sizes import parse_bytes


def kv_command(
    models: Models,
    *,
    memory: Annotated[
        str, typer.Option(help="Memory for weights and KV cache together, such as 20GiB.")
    ] = "20GiB",
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a full sequence. Default: 2048, or what models take."),
    ] = None,
    random_weights: RandomWeights = False,
    predict_only: Annotated[
        bool, typer.Option("--predict-only", help="Do not start vLLM to ask it as well.")
    ] = False,
    dtype: Dtype = "auto",
    seed: Seed = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Say how many tokens and sequences the KV cache holds beside the weights."""
    memory_bytes = parse_bytes(memory, "--memory")
    check_place(output, "kv")
    from grasp_deploy.bench.kv.run import bench_kv
    from grasp_deploy.bench.kv.settings import KvSettings
    from grasp_deploy.bench.kv.table import kv_table
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.report.progress import stage_bars

    chosen = bench_models(models, random_weights, dtype)
    settings = KvSettings(memory_bytes, context, predict_only, dtype, seed)
    with stage_bars(stderr) as on_progress:
        record = bench_kv(chosen, settings, command_line(), on_progress)
    end(record, output, as_json, kv_table)
