"""What all benches share: the checks before a measurement, and the parts of a record."""

from collections.abc import Callable, Hashable, Sequence
from typing import Annotated, Any, Generic, Self, TypeVar

from msgspec import Meta, Struct

from grasp_deploy.checkpoint.footprint import RecordModel, footprint
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.files.memory import memory_bytes
from grasp_deploy.files.record import check_models, new_record

OnRecord = Callable[[Any], None]  # gets the typed record of what is done so far
# Bounds beyond any measurement, within which no ratio, sum or square overflows.
Positive = Annotated[float, Meta(ge=1e-12, le=1e15)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
PositiveCount = Annotated[int, Meta(ge=1, le=2**62)]
Count = Annotated[int, Meta(ge=0, le=2**62)]


class BenchCell(Struct):
    """One model at one point of the bench, such as a batch size."""

    model: str

    @property
    def point(self) -> Hashable:
        """What was measured, such as a batch size: cells of equal points are compared."""
        return None

    @property
    def rates(self) -> list[float]:
        """The rate of each repetition, paired with another model's; empty if nothing is timed."""
        return []


class MeasuredModel(RecordModel, frozen=True, omit_defaults=True):
    """A model of a bench, with the share of its attention that sees the last tokens alone."""

    windowed_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    window_tokens: PositiveCount = 1

    @classmethod
    def of(cls, model: BenchModel) -> Self:
        """The model as records have it."""
        windows, plain = model.shape.windows, (model.name, footprint(model.shape))
        if not windows.narrow:
            return cls(*plain)
        return cls(*plain, windows.narrow / (windows.narrow + windows.wide), windows.tokens)


Settings = TypeVar("Settings")
Cell = TypeVar("Cell", bound=BenchCell)


class BenchRecord(Struct, Generic[Settings, Cell], kw_only=True):
    """The keys of every record of a bench, for its own types of `settings` and `cells`.

    The first model is the baseline that the others are compared with.
    """

    schema_version: int
    benchmark: str
    command: str
    created: str
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: Settings
    models: Annotated[list[MeasuredModel], Meta(min_length=1)]
    cells: Annotated[list[Cell], Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Refuse two models of one name, and cells that fit no model or do not pair up."""
        names = [model.name for model in self.models]
        check_models(names, [cell.model for cell in self.cells])
        for index, cell in enumerate(self.cells):
            dense = self.dense_cell(cell)
            counts = [len(one.rates) for one in (cell, dense) if one and one.rates]
            if len(set(counts)) > 1:
                raise ValueError(
                    f"cells[{index}] has {counts[0]} repetitions, and the first model has "
                    f"{counts[1]}"
                )

    @classmethod
    def made(
        cls,
        benchmark: str,
        command: Sequence[str],
        settings: Settings,
        models: Sequence[BenchModel],
        cells: Sequence[Cell],
    ) -> Self:
        """The record of these cells and of their models, with the header of every record."""
        done = {cell.model for cell in cells}
        measured = [MeasuredModel.of(model) for model in models if model.name in done]
        return cls(**new_record(benchmark, command, settings, models=measured, cells=[*cells]))

    @property
    def baseline(self) -> str:
        """Name of the first model."""
        return self.models[0].name

    def dense_cell(self, cell: Cell) -> Cell | None:
        """The first model's cell at the same point; None if that is `cell` itself or missing."""
        point = (self.baseline, cell.point)
        dense = next((other for other in self.cells if (other.model, other.point) == point), None)
        return None if dense is cell else dense

    def line(self, model: str, outcome: str, sentence: str) -> dict[str, str]:
        """A headline about a model, ready for JSON."""
        figures = {"model": model, "outcome": outcome, "sentence": sentence}
        return {"benchmark": self.benchmark, "baseline": self.baseline, **figures}


def check_room(needed_bytes: int, what: str, remedy: str) -> None:
    """Raise InputError if the memory does not suffice, before the kernel kills a process."""
    free_bytes = memory_bytes(free=True)
    if needed_bytes > free_bytes:
        raise InputError(
            f"{what} {needed_bytes / 2**30:,.1f} GiB, and {free_bytes / 2**30:,.1f} GiB are free: "
            f"{remedy}"
        )
