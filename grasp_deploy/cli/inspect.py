"""`inspect`: the footprint of a model, predicted from its config."""

from __future__ import annotations

from typing import Annotated

import typer

from grasp_deploy.cli.console import print_json, stdout
from grasp_deploy.cli.options import MODEL_HELP, Json, Revision
from grasp_deploy.files.sizes import parse_bytes

TensorParallel = Annotated[
    int | None, typer.Option(min=1, help="Check that every layer divides by this size.")
]
Memory = Annotated[
    str | None, typer.Option(help="Count the cached tokens that fit, such as in 20GiB.")
]


def inspect_command(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    *,
    revision: Revision = None,
    tensor_parallel: TensorParallel = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Predict a model's footprint from its config.json alone, dense beside pruned."""
    from grasp_deploy.checkpoint.footprint import inspect_model

    memory_bytes = parse_bytes(memory, "--memory") if memory else None
    record = inspect_model(model, revision, tensor_parallel, memory_bytes)
    if as_json:
        print_json(record)
        return
    from grasp_deploy.report.tables import footprint_table, layer_table, ratio_table

    columns = {"pruned" if record["pruned"] else "dense": record}
    if record["pruned"]:
        columns = {"dense": record["dense"], **columns}
        stdout.print(layer_table(record["dense"], record), ratio_table(record["ratios"]))
    stdout.print(footprint_table(columns))
    if tensor_parallel:
        stdout.print(record["tensor_parallel"]["detail"])
