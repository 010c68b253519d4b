"""`bench memory`: the memory that one prefill takes."""

from __future__ import annotations

from grasp_deploy.bench.memory.record import MemorySettings
from grasp_deploy.cli.bench.output import command_line, write_and_print
from grasp_deploy.cli.console import stderr
from grasp_deploy.cli.options import Json, Models, RandomWeights, RecordOutput
from grasp_deploy.cli.settings_options import takes_settings


@takes_settings(MemorySettings)
def memory_command(
    models: Models,
    *,
    settings: MemorySettings,
    random_weights: RandomWeights = False,
    output: RecordOutput = None,
    as_json: Json = False,
) -> None:
    """Measure the memory of one prefill: weights, KV cache and peak, beside their prediction."""
    from grasp_deploy.bench.memory.run import bench_memory
    from grasp_deploy.bench.memory.table import memory_table
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.files.record import check_place
    from grasp_deploy.report.progress import stage_bars

    check_place(output, "memory")
    chosen = bench_models(models, random_weights, settings.dtype)
    with stage_bars(stderr) as on_progress:
        record = bench_memory(chosen, settings, command_line(), on_progress)
    write_and_print(record, output, as_json, memory_table)
