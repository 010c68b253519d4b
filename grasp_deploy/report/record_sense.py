"""Whether the parts of a record belong together: models, cells and repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grasp_deploy.files.record import is_number

Cells = Sequence[Mapping[str, Any]]
ROUNDING = 1e-9  # by which a mean of accuracies may exceed 1


def mixed_up(record: Mapping[str, Any]) -> str:
    """Whether cells speak of models that the record does not have, or do not pair up."""
    names = [model["name"] for model in record["models"]]
    cells, kind = record["cells"], record["benchmark"]
    if len(set(names)) < len(names):
        return "two of its models have one name"
    for index, cell in enumerate(cells):
        if cell["model"] not in names:
            return f"cells[{index}] is of a model {cell['model']!r} that it does not have"
    if kind == "throughput":
        return _unpaired(cells)
    if kind == "serve":
        return _unserved(cells) or _unpaired(cells)
    if kind == "tasks":
        return _unlike_tasks(cells, names)
    return ""


def _unpaired(cells: Cells) -> str:
    """Whether cells at one point have different numbers of repetitions."""
    keys = ("engine", "batch", "prompt_tokens", "new_tokens", "load")
    repetitions: dict[str, int] = {}
    for index, cell in enumerate(cells):
        point = str([cell.get(key) for key in keys])
        if not cell["samples"]:  # nothing could be measured there
            continue
        if repetitions.setdefault(point, len(cell["samples"])) != len(cell["samples"]):
            return f"cells[{index}] has another number of repetitions than others at its point"
    return ""


def _unserved(cells: Cells) -> str:
    """Whether a load was not run, or answered at no speed although nothing failed."""
    for index, cell in enumerate(cells):
        if not cell["samples"]:
            return f"cells[{index}].samples is empty"
        rates = [sample["output_tokens_per_second"] for sample in cell["samples"]]
        if not all(rates) and not any(sample["failed"] for sample in cell["samples"]):
            return f"cells[{index}] has no tokens per second although no request failed"
    return ""


def _unlike_tasks(cells: Cells, names: Sequence[str]) -> str:
    """Whether models have run different tasks or items, or an item lacks its task's figure."""
    by_model = [[cell for cell in cells if cell["model"] == name] for name in names]
    tasks = [[cell["task"] for cell in of_model] for of_model in by_model]
    if any(of_model != tasks[0] for of_model in tasks):
        return "its models have not run the same tasks"
    for index, cell in enumerate(cells):
        if found := _wrong_task(cell):
            return f"cells[{index}] has {found}"
    for of_model in by_model[1:]:
        for first, other in zip(by_model[0], of_model, strict=True):
            if found := _unlike(first, other):
                return f"its models have not run {first['task']} alike: {found}"
    return ""


def _wrong_task(cell: Mapping[str, Any]) -> str:
    metric = cell["metric"].partition(",")[0]
    if cell["accuracy"] > 1 + ROUNDING:
        return f"an accuracy of {cell['accuracy']:g}, and 1 is all"
    for item in cell["items"]:
        if metric not in item:
            return f"an item without {metric}"
        if not is_number(item[metric]):
            return f"an item whose {metric} is no number"
        if not isinstance(item.get("loglikelihoods", []), list):
            return "an item whose loglikelihoods are no list"
    if len(set(_identities(cell))) < len(cell["items"]):
        return "an item twice"
    return ""


def _unlike(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What tells the items of two models on one task apart, in words."""
    for key, what in (("metric", "metrics"), ("prompts_sha256", "prompts")):
        if first[key] != other[key]:
            return f"their {what} differ"
    return "their items differ" if _identities(first) != _identities(other) else ""


def _identities(cell: Mapping[str, Any]) -> list[tuple[str, int]]:
    """What its items are called: a group of tasks has a number for each task."""
    return [(str(item.get("task", "")), item["item"]) for item in cell["items"]]
