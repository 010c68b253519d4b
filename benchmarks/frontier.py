"""Loss and accuracy against memory, for models that are pruned, quantised, or both.

Takes a record of `evaluate compare` and any of `evaluate tasks`. A name that goes on from
another's, as `smaller-fp8` does from `smaller`, is that model in another scheme. Names that differ
after their last dash, as `ours-0.8` and `ours-0.6` do, are one method at two budgets.

    python -m benchmarks.frontier compare.json tasks-*.json --tokens 16384 --png frontier.png
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import convert
from rich.table import Table

from benchmarks.common.output import check_positive, new_parser, run_command, write_png
from grasp_deploy.checkpoint.footprint import RecordModel
from grasp_deploy.cli.console import stdout
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.compare import CompareRecord
from grasp_deploy.evaluate.tasks.accuracy import average, read_tasks_record
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.record import read_record
from grasp_deploy.report.section import REMEDY
from grasp_deploy.stats.wording import grouped, percent, plus_minus

MIB = 2**20
ALIKE = ("metric", "num_fewshot", "prompts_sha256")  # of a task, if items are the same


class Point(NamedTuple):
    """A model: MiB of weights and of a KV cache, nats, and accuracy, each with its error."""

    model: str
    scheme: str  # "plain", or what its name adds to another's or to a method's
    weights: float
    cache: float
    loss: float
    loss_error: float | None
    accuracy: float | None
    accuracy_error: float | None


def points_of(compared: CompareRecord, tasks: Sequence[Path], tokens: int) -> list[Point]:
    """A point for each model of a comparison; accuracies, by name, over the tasks of all records.

    Raises InputError unless all models that ran tasks are of the comparison, and ran the same
    items of the same ones, each once.
    """
    records = [read_tasks_record(path) for path in tasks]
    for model in convert([m for record in records for m in record["models"]], list[RecordModel]):
        if model not in compared.models:
            raise InputError(
                f"{model.name} of the records of tasks is not in the comparison, or has another "
                "footprint there: name records of the same models"
            )
    cells = [cell for record in records for cell in record["cells"]]
    by_model = grouped(cells, lambda cell: cell["model"])
    ran = [{cell["task"]: [cell[key] for key in ALIKE] for cell in of} for of in by_model]
    if any(alike != ran[0] for alike in ran) or sum(map(len, ran)) < len(cells):
        raise InputError(
            "the records of tasks differ in a model's tasks, or repeat one, or have other metrics, "
            "shots or prompts of one: drop some"
        )
    accuracies = {of_model[0]["model"]: average(of_model) for of_model in by_model}
    names, points = [model.name for model in compared.models], []
    methods = Counter(name.rpartition("-")[0] for name in names)
    stems = [*names, *(stem for stem, models in methods.items() if stem and models > 1)]
    for model, point in zip(compared.models, compared.points, strict=True):
        plain = max((n for n in stems if model.name.startswith(f"{n}-")), key=len, default="")
        loss, scored = point.loss - compared.points[0].loss, accuracies.get(model.name, {})
        points.append(
            Point(
                plain or model.name,
                model.name.removeprefix(f"{plain}-") if plain else "plain",
                model.footprint.weight_bytes / MIB,
                model.footprint.kv_bytes_per_token * tokens / MIB,
                loss,
                point.error,
                scored.get("accuracy"),
                scored.get("standard_error"),
            )
        )
    return points


def table_of(points: Sequence[Point], tokens: int) -> Table:
    table = Table("model", "scheme", title=f"KV: a cache of {tokens:,} tokens")
    for name in ("weights, MiB", "and KV", "nats above", "accuracy, %"):
        table.add_column(name, justify="right")
    for point in points:
        accuracy = "" if point.accuracy is None else percent(point.accuracy, point.accuracy_error)
        sizes = (f"{point.weights:,.0f}", f"{point.weights + point.cache:,.0f}")
        loss = plus_minus(point.loss, point.loss_error or None, ".3f", "+")
        table.add_row(point.model, point.scheme, *sizes, loss, accuracy)
    return table


def draw(points: Sequence[Point], tokens: int, path: Path) -> None:
    """Loss by weights, by weights and cache, and accuracy if known: a line for each model."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from grasp_deploy.report.figure_style import look_of, our_style

    with our_style(), mpl.rc_context({"font.size": 7}):
        count = 3 if any(point.accuracy is not None for point in points) else 2
        figure = Figure(figsize=(10 * count / 3, 3.4))
        panels = figure.subplots(1, count)
        labelled = set()
        both = f"weights and {tokens:,} tokens of KV cache, MiB"
        for place, name in enumerate(dict.fromkeys(point.model for point in points)):
            line = sorted((p for p in points if p.model == name), key=lambda p: -p.loss)
            line.sort(key=lambda p: round(p.weights))  # of two alike the better one comes second
            scored = [p for p in line if p.accuracy is not None]
            sized = [(p.weights + p.cache, 100 * (p.accuracy or 0)) for p in scored]
            errors = [100 * (p.accuracy_error or 0) for p in scored]
            losses = [p.loss for p in line]
            look = look_of(place) | {"label": name, "linewidth": 1.2}
            panels[0].plot([p.weights for p in line], losses, **look)
            panels[1].plot([p.weights + p.cache for p in line], losses, **look)
            if sized:
                panels[2].errorbar(*zip(*sized, strict=True), yerr=errors, capsize=2, **look)
            for before, p in zip([None, *line[:-1]], line, strict=True):
                label = (p.scheme, round(p.weights), round(p.loss, 1))
                if len(line) == 1 or label in labelled:  # the legend, or another's label, says it
                    continue
                labelled.add(label)
                beneath = before is not None and round(before.weights) == round(p.weights)
                where, offset = (p.weights, p.loss), (4, -9 if beneath else 4)
                panels[0].annotate(p.scheme, where, offset, textcoords="offset points", fontsize=6)
        for panel, across in zip(panels, ("weights, MiB", both, both)[:count], strict=True):
            panel.set_xlabel(across)
            panel.set_ylabel("nats per token above the first")
        if count == 3:
            panels[2].set_ylabel("accuracy, %")
        panels[0].legend()
        write_png(path, figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("compared", type=Path, help="record of `evaluate compare`")
    parser.add_argument("tasks", type=Path, nargs="*", help="records of `evaluate tasks`")
    parser.add_argument("--tokens", type=int, default=16_384, help="tokens that the cache holds")
    parser.add_argument("--png", type=Path, help="where to write the figure")
    options = parser.parse_args(arguments)
    check_positive(options, "tokens")
    record = read_record(options.compared, REMEDY)
    if record["benchmark"] != "compare":
        raise InputError(f"{options.compared} is no record of `evaluate compare`: {REMEDY}")
    compared = typed(record, CompareRecord, options.compared, REMEDY)
    points = points_of(compared, options.tasks, options.tokens)
    stdout.print(table_of(points, options.tokens))
    if options.png is not None:
        draw(points, options.tokens, options.png)


if __name__ == "__main__":
    run_command(main)
