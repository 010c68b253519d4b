"""`bench kv`: the tokens and sequences that a memory holds."""

from __future__ import annotations

from grasp_deploy.bench.kv.record import KvSettings
from grasp_deploy.cli.bench.output import command_line, write_and_print
from grasp_deploy.cli.console import stderr
from grasp_deploy.cli.options import Json, Models, RandomWeights, RecordOutput
from grasp_deploy.cli.settings_options import takes_settings


@takes_settings(KvSettings)
def kv_command(
    models: Models,
    *,
    settings: KvSettings,
    random_weights: RandomWeights = False,
    output: RecordOutput = None,
    as_json: Json = False,
) -> None:
    """Count the tokens and sequences that the KV cache holds beside the weights."""
    from grasp_deploy.bench.kv.run import bench_kv
    from grasp_deploy.bench.kv.table import kv_table
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.files.record import check_place
    from grasp_deploy.report.progress import stage_bars

    check_place(output, "kv")
    chosen = bench_models(models, random_weights, settings.dtype)
    with stage_bars(stderr) as on_progress:
        record = bench_kv(chosen, settings, command_line(), on_progress)
    write_and_print(record, output, as_json, kv_table)
