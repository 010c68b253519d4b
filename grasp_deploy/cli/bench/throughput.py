"""`bench throughput`: batches of requests, as fast as an engine runs them."""

from __future__ import annotations

from grasp_deploy.bench.throughput.record import ThroughputSettings
from grasp_deploy.cli.bench.output import command_line, write_and_print
from grasp_deploy.cli.console import stderr
from grasp_deploy.cli.options import Json, Models, RandomWeights, RecordOutput
from grasp_deploy.cli.settings_options import takes_settings

ENOUGH_REPETITIONS = 3


@takes_settings(ThroughputSettings)
def throughput_command(
    models: Models,
    *,
    settings: ThroughputSettings,
    random_weights: RandomWeights = False,
    output: RecordOutput = None,
    as_json: Json = False,
) -> None:
    """Measure throughput, TTFT and TPOT against batch size, models side by side."""
    from grasp_deploy.bench.throughput.run import bench_throughput
    from grasp_deploy.bench.throughput.table import throughput_table
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.files.record import check_place
    from grasp_deploy.report.progress import stage_bars

    check_place(output, "throughput")
    chosen = bench_models(models, random_weights, settings.dtype)
    if settings.repetitions < ENOUGH_REPETITIONS:
        stderr.print(
            f"--repetitions {settings.repetitions} hardly separates a difference from noise: use "
            f"{ENOUGH_REPETITIONS} or more",
            highlight=False,
        )
    with stage_bars(stderr) as on_progress:
        record = bench_throughput(chosen, settings, command_line(), on_progress)
    for cell in record.cells:
        if cell.refused:
            stderr.print(f"{cell.model}: {cell.refused}", markup=False, highlight=False)
    write_and_print(record, output, as_json, throughput_table)
