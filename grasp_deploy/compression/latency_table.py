"""A table of measured times: what `table` wrote, and the price that follows from it."""

from __future__ import annotations

import statistics
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from grasp_deploy.checkpoint.footprint import Footprint, footprint
from grasp_deploy.checkpoint.format.shapes import ModelShape, Size
from grasp_deploy.compression.table_shapes import Sizes, sizes_to_measure
from grasp_deploy.config.latency_options import LatencySettings
from grasp_deploy.config.option import flag
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.record import machine, read_record
from grasp_deploy.pruning.latency import LinearTime, fit_time

KIND = "latency"
REMEDY = "measure one with grasp-deploy table"
PHASES = {"decode": "tpot_seconds", "prefill": "ttft_seconds"}
Seconds = Annotated[float, Meta(ge=1e-12, le=1e15)]


class Times(Struct, frozen=True):
    """One repetition: means over the sequences of a batch."""

    ttft_seconds: Seconds
    tpot_seconds: Seconds


class Point(Struct):
    """A shape that is the same in every layer, at one batch and context, beside the dense model.

    Repetition i of both ran in one round.
    """

    ffn_channels: Size
    kv_groups: Size
    batch: Size
    context: Size
    samples: Annotated[list[Times], Meta(min_length=1)]
    dense_samples: Annotated[list[Times], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if len(self.samples) != len(self.dense_samples):
            raise ValueError("samples and dense_samples do not pair up")

    @property
    def place(self) -> tuple[Sizes, int, int]:
        """What tells a point from all others of its table."""
        return Sizes(self.ffn_channels, self.kv_groups), self.batch, self.context

    def shares_of_dense(self, phase: str) -> list[float]:
        """Time over the dense model's, one number for each repetition."""
        pairs = zip(self.samples, self.dense_samples, strict=True)
        name = PHASES[phase]
        return [getattr(after, name) / getattr(before, name) for after, before in pairs]


class TableModel(Struct):
    """The dense model, whose layers are all alike."""

    name: str
    footprint: Footprint


class LatencyTable(Struct, kw_only=True):
    """The parts of a table that a price is made of."""

    machine: dict[str, Any]
    settings: LatencySettings
    models: Annotated[list[TableModel], Meta(min_length=1, max_length=1)]
    cells: Annotated[list[Point], Meta(min_length=1)]

    @property
    def dense(self) -> TableModel:
        return self.models[0]

    def is_whole(self, dense: ModelShape) -> bool:
        """Tell whether all points that the settings ask for are there, and no others."""
        settings = self.settings
        try:
            sizes = sizes_to_measure(dense, settings)
        except InputError:  # a tile that no table was measured with
            return False
        asked = set(product(sizes, settings.batches, settings.contexts))
        return (
            len(self.cells) == len(asked)
            and {cell.place for cell in self.cells} == asked
            and all(len(cell.samples) == settings.repetitions for cell in self.cells)
        )

    def points(self, batch: int, context: int) -> list[Point]:
        """What was measured at one batch and context."""
        return [cell for cell in self.cells if (cell.batch, cell.context) == (batch, context)]

    def dense_seconds(self, batch: int, context: int, phase: str) -> float:
        """Median time of the dense model: of a decode step, or of a prefill."""
        samples = [s for point in self.points(batch, context) for s in point.dense_samples]
        return statistics.median(getattr(sample, PHASES[phase]) for sample in samples)

    def price(self, batch: int, context: int, phase: str) -> LinearTime:
        """The line through the measured shapes; needs `points(batch, context)`."""
        layer, dense = self.dense.footprint.layers[0], self.dense_seconds(batch, context, phase)
        return fit_time(
            dense,
            [
                (
                    point.ffn_channels / layer.intermediate_size,
                    point.kv_groups / layer.num_key_value_heads,
                    dense * statistics.median(point.shares_of_dense(phase)),
                )
                for point in self.points(batch, context)
            ],
        )


def read_table(path: Path, shape: ModelShape, batch: int, context: int) -> LatencyTable:
    """The whole table of a dense shape, made on this machine; InputError for any other file."""
    document = read_record(path, REMEDY)
    if document["benchmark"] != KIND:
        raise InputError(f"{path} is a record of {document['benchmark']}, not a table: {REMEDY}")
    table = typed(document, LatencyTable, path, REMEDY)
    made_for = table.dense.footprint
    if made_for.dtype != shape.dtype:
        raise InputError(
            f"{path} was measured in {made_for.dtype}, and the model's weights are {shape.dtype}: "
            f"{REMEDY} --dtype {shape.dtype}"
        )
    if made_for != footprint(shape):
        raise InputError(f"{path} was measured for {table.dense.name}, another shape: {REMEDY}")
    _check_machine(path, table)
    if not table.is_whole(shape):
        raise InputError(
            f"{path} is unfinished or edited: measure it again with grasp-deploy table"
        )
    if not table.points(batch, context):
        has = ", ".join(sorted({f"{cell.batch} and {cell.context}" for cell in table.cells}))
        raise InputError(
            f"{path} has no times at batch {batch} and context {context}, only at {has}: give "
            f"one of them, or {REMEDY} {flag(LatencySettings, 'batches')} {batch} "
            f"{flag(LatencySettings, 'contexts')} {context}"
        )
    return table


def _check_machine(path: Path, table: LatencyTable) -> None:
    """InputError if the table's times are those of another processor or GPU."""
    key = "processor" if table.settings.device == "cpu" else "gpu"
    before, here = table.machine.get(key), machine().get(key)
    if before is None or before != here:
        raise InputError(
            f"{path} was measured on another machine ({before}; here: {here or 'no GPU'}), whose "
            f"times are others: {REMEDY} here"
        )
