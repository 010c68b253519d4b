"""`synthesize`: a pruned config.json to measure with, without any weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from grasp_deploy.cli.console import print_json, print_line, stdout
from grasp_deploy.cli.options import Json, Output
from grasp_deploy.cli.settings_options import Command, field_parameters, with_parameters
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError

BUDGET_FIELDS = (
    *("keep", "cost", "cached_tokens", "targets", "ffn_multiple", "kv_multiple"),
    *("tensor_parallel", "seed", "revision"),
)
DenseConfig = Annotated[str, typer.Argument(help="config.json, folder or hub id of a dense model.")]
KvKeep = Annotated[
    float | None, typer.Option(help="Share of all KV groups to keep; FFN channels take the rest.")
]


def takes_budget(command: Command) -> Command:
    """Give a command with a parameter `budget` some options of a compression, as a dictionary."""
    keep, *others = field_parameters(CompressConfig, BUDGET_FIELDS)
    parameters = [keep.replace(default=inspect.Parameter.empty), *others]  # required here
    as_given: Callable[[dict[str, Any]], Any] = dict
    return with_parameters(command, "budget", parameters, as_given)


@takes_budget
def synthesize_command(
    config: DenseConfig,
    *,
    budget: dict[str, Any],
    output: Output,
    kv_keep: KvKeep = None,
    as_json: Json = False,
) -> None:
    """Prune a config.json by a random mask under a budget, for benches with --random-weights."""
    try:
        checked = CompressConfig(model=config, **budget)
    except InputError as error:  # --set targets is an option of its own here
        raise InputError(str(error).replace("--set targets=", "--targets ")) from None
    from grasp_deploy.checkpoint.footprint import inspect_model
    from grasp_deploy.compression.synthesize import synthesize

    synthesize(checked, output, kv_keep=kv_keep)
    record = inspect_model(str(output))
    if as_json:
        print_json(record)
        return
    from grasp_deploy.report.tables import footprint_table, ratio_table

    stdout.print(ratio_table(record["ratios"]))
    stdout.print(footprint_table({"dense": record["dense"], "pruned": record}))
    if kv_keep is None and checked.targets == "both":
        stdout.print("units drawn at random; compress keeps most KV groups: try --kv-keep 0.9")
    print_line(f"wrote {output}")
