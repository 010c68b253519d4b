"""The parts that the records of all benches share: header, models, and their consistency."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.evaluate.models import BenchModel

Positive = Annotated[float, Meta(gt=0)]
Amount = Annotated[float, Meta(ge=0)]
PositiveCount = Annotated[int, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]


class RecordModel(Struct, frozen=True):
    """One measured model; its name is the key that cells refer to."""

    name: str
    footprint: Footprint


class BenchRecord(Struct, kw_only=True):
    """The keys of every record of a bench; each bench adds its typed `settings` and `cells`.

    The first model is the baseline that the others are compared with.
    """

    schema_version: int
    benchmark: str
    command: str
    created: str
    machine: dict[str, Any]
    versions: dict[str, str]
    models: Annotated[list[RecordModel], Meta(min_length=1)]

    @property
    def baseline(self) -> str:
        """Name of the first model."""
        return self.models[0].name

    @property
    def footprints(self) -> dict[str, Footprint]:
        """Footprint of each model, by its name."""
        return {model.name: model.footprint for model in self.models}

    def check_models(self, cell_models: Iterable[str]) -> None:
        """ValueError for two models of one name, or a cell whose model is not in the record."""
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise ValueError(f"two of its models have one name: {', '.join(names)}")
        for index, name in enumerate(cell_models):
            if name not in names:
                raise ValueError(f"cells[{index}].model is {name!r}, which is not in its models")


def record_models(models: Sequence[BenchModel]) -> list[RecordModel]:
    """The models of a bench as its record has them."""
    return [convert(model.as_dict(), RecordModel) for model in models]


def check_repetitions(counts: Iterable[tuple[Hashable, int]]) -> None:
    """ValueError if cells at one point differ in their number of repetitions.

    `counts` has the point and the number of samples of each cell. A cell without samples could not
    be measured, and is left out.
    """
    expected: dict[Hashable, int] = {}
    for index, (point, count) in enumerate(counts):
        if count and expected.setdefault(point, count) != count:
            raise ValueError(
                f"cells[{index}].samples has {count} repetitions, and another cell at its point "
                f"has {expected[point]}"
            )
