"""A record of tasks as a table and a figure: accuracies side by side, the changes beside them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import to_builtins
from rich.table import Table
from rich.text import Text

from grasp_deploy.checkpoint.card.quality_verdict import FEW_ITEMS, is_beyond_noise
from grasp_deploy.evaluate.tasks.accuracy import AVERAGE_RULE, RULE, TasksRecord, average, change
from grasp_deploy.report.section import Drawing
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.noise import NO_DIFFERENCE, UNDECIDED
from grasp_deploy.stats.wording import counted, percent

Cells = Sequence[Mapping[str, Any]]


def tables(record: TasksRecord) -> list[Table]:
    """A row a task and one for the average; the first model, and the others with their change.

    Percentages with their standard errors. The error of a change is paired: all models answered
    the same items.
    """
    document, names = to_builtins(record), [model.name for model in record.models]
    cells = [[c for c in document["cells"] if c["model"] == name] for name in names]
    heads = ["task", "metric", "items", names[0]]
    heads += [head for name in names[1:] for head in (name, "change")]
    table = figure_table("Accuracy on tasks, %", heads, _notes(document, cells))
    for of_task in zip(*cells, strict=True):
        first = of_task[0]
        figures = _figures([[cell] for cell in of_task])
        table.add_row(Text(first["task"]), first["metric"], f"{len(first['items']):,}", *figures)
    table.add_section()
    if len(cells[0]) > 1:
        table.add_row("average", "", "", *_figures(cells))
    return [table]


def headlines(record: TasksRecord) -> Iterator[dict[str, Any]]:
    """For each model but the first, if its average is ahead, behind, or within paired noise."""
    cells, names = to_builtins(record.cells), [model.name for model in record.models]
    dense, *others = ([c for c in cells if c["model"] == name] for name in names)
    items = min(len(cell["items"]) for cell in dense)  # of the task that tells least of noise
    for name, of_model in zip(names[1:], others, strict=True):
        shift, error = change(dense, of_model)
        row, needs = {"change": shift, "change_error": error, "items": items}, ""
        found = is_beyond_noise(row, len(others))
        outcome = ("ahead" if shift > 0 else "behind") if found else NO_DIFFERENCE
        if found is None:
            outcome = UNDECIDED
            needs = f" (to tell takes the same {FEW_ITEMS} or more items a task, not changed alike)"
        points = f"{percent(shift, error, '+')} points of accuracy on {counted(len(dense), 'task')}"
        line = {"outcome": outcome, "sentence": f"{outcome}: {points} against {names[0]}{needs}."}
        yield {"benchmark": "tasks", "baseline": names[0], "model": name, **line}


def _figures(models: Sequence[Cells]) -> list[str]:
    texts = []
    for index, cells in enumerate(models):
        mean = average(cells)
        texts.append(percent(mean["accuracy"], mean["standard_error"]))
        if index:
            texts.append(percent(*change(models[0], cells), sign="+"))
    return texts


def _notes(record: Mapping[str, Any], cells: Sequence[Cells]) -> list[str]:
    notes = [RULE, AVERAGE_RULE, "±: one standard error"]
    if limit := record["settings"].get("limit"):
        notes.append(f"only the first {limit} items of each task")
    asked = record["settings"].get("num_fewshot")
    if others := [c["task"] for c in cells[0] if asked and c["num_fewshot"] == 0]:
        own = ", ".join(others)
        notes.append(f"--num-fewshot {asked} does not change tasks whose own number is 0: {own}")
    shots = {c["task"]: c["num_fewshot"] for c in record["cells"] if c["num_fewshot"]}
    if shots:
        listed = ", ".join(f"{task} {count}" for task, count in shots.items())
        notes.append(f"examples in the prompt: {listed}")
    if most := max(sum(cell["truncated"] for cell in of_model) for of_model in cells):
        notes.append(f"at least {most:,} prompts were too long and lost their beginning")
    return notes


def figures(record: TasksRecord) -> Iterator[Drawing]:
    """The average accuracy against size; nothing for one model."""
    from grasp_deploy.report import figure_style as style

    if len(record.models) < 2:
        return
    points = []
    for model in record.models:
        mean = average([to_builtins(c) for c in record.cells if c.model == model.name])
        error = mean["standard_error"]
        figures = 100 * mean["accuracy"], None if error is None else 100 * error
        points.append((model.name, model.footprint, *figures))
    what = f"mean of {mean['tasks']} tasks" if mean["tasks"] > 1 else record.cells[0].task
    title, note = "Accuracy against size", f"{what}; bars: one standard error"
    axes, _, handles = style.against_size(title, note, "accuracy, %", points)
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= 100])
    yield style.finished("accuracy-by-size", title, axes, handles)
