"""`bench throughput`: batches of requests, as fast as an engine runs them."""

from __future__ import annotations

from typing import Annotated

import typer

from grasp_deploy.cli.bench.options import (
    Device,
    Dtype,
    Json,
    Models,
    Output,
    RandomWeights,
    Repetitions,
    Seed,
    int_list,
)
from grasp_deploy.cli.bench.output import check_place, command_line, end
from grasp_deploy.cli.console import stderr
from grasp_deploy.files.sizes import parse_bytes

ENOUGH_REPETITIONS = 3


def throughput_command(
    models: Models,
    *,
    batch: Annotated[str, typer.Option(help="Requests at a time.")] = "1,2,4,8,16,32,64",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 2048,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens that each is continued by.")] = 256,
    engine: Annotated[
        str, typer.Option(help="vllm; or transformers, for machines without vLLM.")
    ] = "vllm",
    random_weights: RandomWeights = False,
    repetitions: Repetitions = ENOUGH_REPETITIONS,
    kv_memory: Annotated[
        str | None,
        typer.Option(
            help="vLLM's KV cache, the same for each model, such as 4GiB. Default: what the "
            "largest batch of the first model takes.",
            show_default=False,
        ),
    ] = None,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="Let vLLM compile nothing.")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    seed: Seed = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure throughput, TTFT and TPOT against batch size, models side by side."""
    batches = tuple(int_list(batch, "--batch"))
    kv_memory_bytes = parse_bytes(kv_memory, "--kv-memory") if kv_memory else None
    check_place(output, "throughput")
    from grasp_deploy.bench.throughput.run import bench_throughput
    from grasp_deploy.bench.throughput.settings import ThroughputSettings
    from grasp_deploy.bench.throughput.table import throughput_table
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.report.progress import stage_bars

    chosen = bench_models(models, random_weights, dtype)
    settings = ThroughputSettings(
        engine=engine,
        batches=batches,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        repetitions=repetitions,
        kv_memory_bytes=kv_memory_bytes,
        device=device,
        dtype=dtype,
        enforce_eager=enforce_eager,
        seed=seed,
    )
    if repetitions < ENOUGH_REPETITIONS:
        stderr.print(
            f"with --repetitions {repetitions} a difference can hardly be told from noise: "
            f"{ENOUGH_REPETITIONS} or more are better",
            highlight=False,
        )
    with stage_bars(stderr) as on_progress:
        record = bench_throughput(chosen, settings, command_line(), on_progress)
    for cell in record.cells:
        if cell.refused:
            stderr.print(f"{cell.model}: {cell.refused}", markup=False, highlight=False)
    end(record, output, as_json, throughput_table)
