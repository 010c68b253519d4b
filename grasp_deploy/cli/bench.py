"""`bench`: memory and speed, models side by side."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from grasp_deploy.bench.kv import KvSettings, bench_kv
from grasp_deploy.bench.memory import MemorySettings, bench_memory
from grasp_deploy.bench.serve import ServeSettings, bench_serve
from grasp_deploy.bench.throughput import ThroughputSettings, bench_throughput
from grasp_deploy.cli.console import Commands, print_json, stderr
from grasp_deploy.cli.options import Json, Models, RecordOutput, takes_settings
from grasp_deploy.cli.report import print_report
from grasp_deploy.errors import InputError

ModelsAndFlags = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL... [-- VLLM FLAGS]",
        help="Hub ids or folders with weights and tokenizer; the others are compared with the "
        "first. Flags after -- go to `vllm serve`.",
    ),
]
bench_app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Measure memory and speed, models side by side."
)


def add_bench(kind: str, settings_type: type, measure: Callable[..., Any], about: str) -> None:
    """Add the command of a bench that takes no flags of vLLM."""

    @bench_app.command(kind, help=about)
    @takes_settings(settings_type)
    def command(
        models: Models,
        *,
        settings: Any,
        random_weights: Annotated[
            bool,
            typer.Option(
                "--random-weights",
                help="Fill the models with random weights; each needs only a config.json.",
            ),
        ] = False,
        output: RecordOutput = None,
        as_json: Json = False,
    ) -> None:
        loading = {"random_weights": random_weights, "dtype": settings.dtype}
        run_bench(kind, partial(measure, settings=settings), models, output, as_json, **loading)


about = "Measure the memory of one prefill: weights, KV cache and peak, beside predictions."
add_bench("memory", MemorySettings, bench_memory, about)
about = "Count the tokens and sequences that the KV cache holds beside the weights."
add_bench("kv", KvSettings, bench_kv, about)
about = "Measure throughput, TTFT and TPOT against batch size, models side by side."
add_bench("throughput", ThroughputSettings, bench_throughput, about)


@bench_app.command("serve")
@takes_settings(ServeSettings)
def serve_bench_command(
    models: ModelsAndFlags,
    *,
    settings: ServeSettings,
    output: RecordOutput = None,
    as_json: Json = False,
) -> None:
    """Put load on the live server of each model, with vLLM's own `vllm bench serve`."""
    names, vllm_flags = split_flags(models)
    if settings.concurrencies and settings.request_rates:
        raise InputError("--concurrency and --request-rate are two kinds of load: give one of them")
    measure = partial(bench_serve, settings=settings, vllm_arguments=vllm_flags)
    record = run_bench("serve", measure, names, output, as_json)
    for cell in record.cells:
        for error in {error for sample in cell.samples for error in sample.errors}:
            stderr.print(f"{cell.model}: {error}")


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Models and vLLM flags; click drops the `--` between them, but no model begins with `-`."""
    first = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    return list(arguments[:first]), list(arguments[first:])


def run_bench(
    kind: str,
    measure: Callable[..., Any],
    models: Sequence[str],
    output: Path | None,
    as_json: bool,
    **loading: Any,
) -> Any:
    """Check models and output, measure with progress bars, print and write the record.

    `measure` takes the models, `command`, `on_progress` and `on_record`, whose record of what is
    done is written at once; `loading` goes to `bench_models`.
    """
    from msgspec import to_builtins

    from grasp_deploy.bench.kinds import section_of
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.files.record import check_place, write_record
    from grasp_deploy.report.progress import stage_bars

    check_place(output, kind)
    if output is not None:
        measure = partial(measure, on_record=partial(write_record, output))
    chosen, command = bench_models(models, **loading), ["grasp-deploy", *sys.argv[1:]]
    with stage_bars(stderr) as on_progress:
        record = measure(chosen, command=command, on_progress=on_progress)
    document = to_builtins(record)
    try:
        if output is not None:  # first: whoever reads our output may have gone
            write_record(output, record)
    finally:
        if as_json:
            print_json(document)
        else:
            print_report([section_of(kind, document)], [])
    return record
