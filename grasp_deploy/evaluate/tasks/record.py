"""The record of `evaluate tasks`, checked once when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.record import is_number, read_record

Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1 + 1e-9)]  # a mean of accuracies is rounded
REMEDY = "run `grasp-deploy evaluate tasks` again, or name another record"


class TaskModel(Struct):
    """A measured model, identified by the hashes of its weight files."""

    name: str
    footprint: Footprint
    weight_hashes: dict[str, str]


class TaskCell(Struct):
    """One model on one task, or on a group of tasks."""

    model: str
    task: str
    metric: str  # with its filter if it has one, as in "exact_match, strict-match"
    accuracy: Share
    standard_error: Share | None
    metrics: dict[str, float]
    num_fewshot: Count | None  # None if the tasks of a group differ
    truncated: Count  # prompts that lost their beginning
    prompts_sha256: str
    items: Annotated[list[dict[str, Any]], Meta(min_length=1)]

    def __post_init__(self) -> None:
        metric = self.metric.partition(",")[0]
        figures: list[Any] = [item.get(metric) for item in self.items]
        if not all(is_number(figure) and 0 <= figure <= 1 for figure in figures):
            raise ValueError(f"an item of {self.task} has no {metric} from 0 to 1")


class TasksRecord(Struct):
    """All models on the same items of the same tasks; the first one is the baseline."""

    models: Annotated[list[TaskModel], Meta(min_length=1)]
    settings: dict[str, Any]
    cells: list[TaskCell]

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise ValueError(f"two of its models have one name: {', '.join(names)}")
        for index, cell in enumerate(self.cells):
            if cell.model not in names:
                raise ValueError(f"cells[{index}].model is {cell.model!r}, not one of its models")
        tasks = [[cell.task for cell in self.cells if cell.model == name] for name in names]
        if any(of_model != tasks[0] for of_model in tasks):
            raise ValueError("its models have not run the same tasks")


def read_tasks_record(path: Path) -> dict[str, Any]:
    """Read and check a record; InputError if it is damaged or not of `evaluate tasks`."""
    record = read_record(path)
    if record["benchmark"] != "tasks":
        raise InputError(f"{path} is a record of {record['benchmark']}, not of tasks: {REMEDY}")
    typed(record, TasksRecord, path, REMEDY)
    return record
