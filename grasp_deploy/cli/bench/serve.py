"""`bench serve`: load on the live server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import typer

from grasp_deploy.cli.bench.options import Json, Output, Repetitions, Seed, int_list
from grasp_deploy.cli.bench.output import check_place, command_line, end
from grasp_deploy.cli.console import stderr
from grasp_deploy.errors import InputError

CONCURRENCIES = "1,8,32"


def serve_bench_command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [-- VLLM FLAGS]",
            help="Hub ids or folders with weights and tokenizer; the first is what the others are "
            "compared with. Flags after -- go to `vllm serve`.",
            show_default=False,
        ),
    ],
    *,
    concurrency: Annotated[
        str | None,
        typer.Option(help=f"Requests at once. Default: {CONCURRENCIES}.", show_default=False),
    ] = None,
    request_rate: Annotated[
        str | None,
        typer.Option(help="Instead: requests per second, such as 0.5,2,8.", show_default=False),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each load.")] = 500,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 512,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 128,
    slo_ttft_ms: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="A good request has its first token by then.", show_default=False
        ),
    ] = None,
    slo_tpot_ms: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="... and takes no longer per token after it.", show_default=False
        ),
    ] = None,
    slo_e2e_ms: Annotated[
        float | None,
        typer.Option(min=0.0, help="... and is done by then.", show_default=False),
    ] = None,
    repetitions: Repetitions = 1,
    seed: Seed = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Put load on the live server of each model, with vLLM's own `vllm bench serve`."""
    names, vllm_flags = split_flags(models)
    if concurrency and request_rate:
        raise InputError("--concurrency and --request-rate are two kinds of load: give one of them")
    rates = tuple(rate_list(request_rate, "--request-rate")) if request_rate else ()
    concurrencies = () if rates else tuple(int_list(concurrency or CONCURRENCIES, "--concurrency"))
    slo = {"ttft": slo_ttft_ms, "tpot": slo_tpot_ms, "e2el": slo_e2e_ms}
    check_place(output, "serve")
    from grasp_deploy.bench.serve.run import bench_serve
    from grasp_deploy.bench.serve.settings import ServeSettings
    from grasp_deploy.bench.serve.table import serve_table
    from grasp_deploy.evaluate.models import bench_models
    from grasp_deploy.report.progress import stage_bars

    settings = ServeSettings(
        concurrencies=concurrencies,
        request_rates=rates,
        requests=requests,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        slo_ms={name: ms for name, ms in slo.items() if ms is not None},
        repetitions=repetitions,
        seed=seed,
    )
    chosen = bench_models(names)
    with stage_bars(stderr) as on_progress:
        record = bench_serve(chosen, settings, vllm_flags, command_line(), on_progress)
    for cell in record.cells:
        for error in {error for sample in cell.samples for error in sample.errors}:
            stderr.print(f"{cell.model}: {error}", markup=False, highlight=False)
    end(record, output, as_json, serve_table)


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stood before `--` and after it; click drops the `--`, but no model begins with -."""
    first = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    return list(arguments[:first]), list(arguments[first:])


def rate_list(text: str, flag: str) -> list[float]:
    """The positive numbers in `0.5,2,8`; InputError if it is no such list or repeats one."""
    rates = []
    for part in text.split(","):
        try:
            rates.append(float(part))
        except ValueError:
            rates.append(math.nan)
        if not 0 < rates[-1] < math.inf:
            raise InputError(
                f"{flag} {text!r} has {part.strip()!r} where a positive number belongs: write it "
                "like 0.5,2,8"
            )
    if len(set(rates)) < len(rates):
        raise InputError(f"{flag} {text!r} names a number twice: name each once")
    return rates
