"""`bench memory`: what one prefill takes."""

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


def memory_command(
    models: Models,
    *,
    prompt_tokens: Annotated[
        str, typer.Option(help="Lengths of the prompts, such as 256,512.")
    ] = "256,512,1024,2048",
    batch: Annotated[int, typer.Option(min=1, help="Prompts in a prefill.")] = 4,
    random_weights: RandomWeights = False,
    repetitions: Repetitions = 3,
    device: Device = "auto",
    dtype: Dtype = "auto",
    seed: Seed = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure what one prefill takes: weights, KV cache and peak, beside their prediction."""
    lengths = tuple(int_list(prompt_tokens, "--prompt-tokens"))
    check_place(output, "memory")
    from grasp_deploy.bench.memory.run import bench_memory
    from grasp_deploy.bench.memory.settings import MemorySettings
    from grasp_deploy.bench.memory.table import memory_table
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.report.progress import stage_bars

    chosen = bench_models(models, random_weights, dtype)
    settings = MemorySettings(lengths, batch, repetitions, device, dtype, seed)
    with stage_bars(stderr) as on_progress:
        record = bench_memory(chosen, settings, command_line(), on_progress)
    end(record, output, as_json, memory_table)
