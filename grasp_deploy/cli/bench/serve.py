"""`bench serve`: load on the live server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from grasp_deploy.bench.serve.record import ServeSettings
from grasp_deploy.cli.bench.output import command_line, write_and_print
from grasp_deploy.cli.console import stderr
from grasp_deploy.cli.options import Json, RecordOutput
from grasp_deploy.cli.settings_options import takes_settings
from grasp_deploy.errors import InputError

ModelsAndFlags = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL... [-- VLLM FLAGS]",
        help="Hub ids or folders with weights and tokenizer; the others are compared with the "
        "first. Flags after -- go to `vllm serve`.",
        show_default=False,
    ),
]
Milliseconds = float | None
TtftLimit = Annotated[
    Milliseconds, typer.Option(min=0.0, help="Longest time to the first token of a good request.")
]
TpotLimit = Annotated[
    Milliseconds, typer.Option(min=0.0, help="Longest time per further token of a good request.")
]
EndLimit = Annotated[
    Milliseconds, typer.Option(min=0.0, help="Longest time to the end of a good request.")
]


@takes_settings(ServeSettings)
def serve_bench_command(
    models: ModelsAndFlags,
    *,
    settings: ServeSettings,
    slo_ttft_ms: TtftLimit = None,
    slo_tpot_ms: TpotLimit = None,
    slo_e2e_ms: EndLimit = None,
    output: RecordOutput = None,
    as_json: Json = False,
) -> None:
    """Put load on the live server of each model, with vLLM's own `vllm bench serve`."""
    names, vllm_flags = split_flags(models)
    if settings.concurrencies and settings.request_rates:
        raise InputError("--concurrency and --request-rate are two kinds of load: give one of them")
    slo_ms = {"ttft": slo_ttft_ms, "tpot": slo_tpot_ms, "e2el": slo_e2e_ms}
    settings = replace(settings, slo_ms={k: ms for k, ms in slo_ms.items() if ms is not None})
    from grasp_deploy.bench.serve.run import bench_serve
    from grasp_deploy.bench.serve.table import serve_table
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.files.record import check_place
    from grasp_deploy.report.progress import stage_bars

    check_place(output, "serve")
    chosen = bench_models(names)
    with stage_bars(stderr) as on_progress:
        record = bench_serve(chosen, settings, vllm_flags, command_line(), on_progress)
    for cell in record.cells:
        for error in {error for sample in cell.samples for error in sample.errors}:
            stderr.print(f"{cell.model}: {error}", markup=False, highlight=False)
    write_and_print(record, output, as_json, serve_table)


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Models and vLLM flags; click drops the `--` between them, but no model begins with `-`."""
    first = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    return list(arguments[:first]), list(arguments[first:])
