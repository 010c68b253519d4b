"""Rows that an earlier run of a study, or another study, has measured already."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from benchmarks.study.record import Row, Study, read_study
from grasp_deploy.errors import InputError

SAME_TEXT = 1e-4  # relative: other threads change a perplexity by less, other text by more
ALIKE_TEXT = 0.05  # relative: other numbers of blocks of a text change it by less
SAME_ITEMS = 0.01  # other threads may change an item or two of an accuracy
RELEASES = ("grasp_deploy", "torch", "transformers")  # those that decide figures
Key = tuple[str, float, int]  # options as text, budget, seed


def check_title(output: Path | None, title: str) -> None:
    """InputError if the record to be written exists and is of another study."""
    if output is not None and output.exists():
        before = read_study(output).study
        if before != title:
            raise InputError(
                f"{output} is a record of the study {before}, not of {title}: name another file as "
                "--output, or remove it"
            )


def continue_earlier(
    output: Path | None, study: Study, options: Mapping[str, dict[str, Any]]
) -> None:
    """Take the rows and the dense model's accuracies that an earlier run left.

    `options` are those of each variant as it would be measured now. InputError if the earlier run
    measured under other conditions, with another release or on another machine.
    """
    if output is None or not output.exists():
        return
    check_title(output, study.study)
    earlier = read_study(output)
    difference = _difference(earlier, study) or other_run(earlier.as_record(), study.as_record())
    if difference := difference or _other_options(earlier.rows, options):
        raise InputError(f"{output} {difference}: name another file as --output, or remove it")
    study.command = joined(earlier.command, study.command)
    study.rows = earlier.rows
    study.dense_tasks, study.dense_task_average = earlier.dense_tasks, earlier.dense_task_average


def rows_of_others(paths: Sequence[Path], study: Study) -> dict[Key, Row]:
    """Rows of other studies by their keys; InputError for another model, text or other settings."""
    rows: dict[Key, Row] = {}
    for path in paths:
        other = read_study(path)
        difference = _difference(other, study) or other_run(other.as_record(), study.as_record())
        if difference:
            raise InputError(f"{path} {difference}: leave it out of --known")
        for row in other.rows:
            rows |= by_key(row)
    return rows


def beside(studies: Sequence[Study]) -> Study:
    """The rows of studies of one model and the same kinds of text, as one study to draw.

    A row that was measured otherwise than the first study's names its record, so that no line joins
    the two. Of a variant, budget and seed that several have measured the first counts. InputError
    for studies of several models, texts or sets of tasks.
    """
    first, rows = studies[0], dict[Any, Row]()
    scored = next(filter(_accuracies, studies), first)
    for number, study in enumerate(studies, start=1):
        pair = first.dense_perplexity, study.dense_perplexity
        if study.model != first.model or not _alike(*pair, rel_tol=ALIKE_TEXT):
            raise InputError("--beside takes studies of one model on the same texts: name others")
        if (ran := _accuracies(study)) and ran.keys() != _accuracies(scored).keys():
            raise InputError("--beside takes studies of the same tasks, or of none: name others")
        other = _difference(first, study)
        for row in study.rows:
            if other or _other_options([*rows.values()], {row.variant: row.options}):
                row = replace(row, variant=f"{row.variant}, record {number}")
            rows.setdefault(row.run, row)
    dense = scored.dense_tasks, scored.dense_task_average
    return replace(first, rows=[*rows.values()], dense_tasks=dense[0], dense_task_average=dense[1])


def by_key(row: Row) -> dict[Key, Row]:
    return {key_of(row.options, row.keep, row.seed): row}


def key_of(options: dict[str, Any], keep: float, seed: int) -> Key:
    """The identity of a compression within one model and text."""
    return json.dumps(options, sort_keys=True), keep, seed


def _other_options(rows: Sequence[Row], options: Mapping[str, dict[str, Any]]) -> str:
    for row in rows:
        now = options.get(row.variant)
        if now is not None and (change := changed(row.options, now)):
            return f"has {row.variant!r} measured with {change}"
    return ""


def _difference(earlier: Study, study: Study) -> str:
    if change := changed(earlier.settings, study.settings):
        return f"was measured with {change}"
    if change := other_text(earlier.dense_perplexity, study.dense_perplexity):
        return change
    before, now = _accuracies(earlier), _accuracies(study)
    if now and not _alike(before, now, abs_tol=SAME_ITEMS):
        return f"has the dense accuracies {_listed(before)}, not {_listed(now)}"
    return ""


def other_run(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How releases or machines differ, which a record states once for all its rows, else empty."""
    had, has = (
        {name: of["versions"][name] for name in RELEASES if name in of["versions"]} | of["machine"]
        for of in (before, now)
    )
    change = changed(had, has)
    return change and f"was measured with {change}"


def joined(before: str, now: str) -> str:
    """The commands that make the rows of both runs, one after the other."""
    return before if now in before.split(" && ") else f"{before} && {now}"


def other_text(before: Mapping[str, float], now: Mapping[str, float]) -> str:
    """How the dense model's perplexities say that model or text is another, else empty."""
    if _alike(before, now, rel_tol=SAME_TEXT):
        return ""
    return f"has the dense perplexities {_listed(before)}, not {_listed(now)}"


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first setting that is another now, in words; empty if there is none."""
    for name in [*now, *(name for name in before if name not in now)]:
        if before.get(name, ()) != now.get(name, ()):
            had, has = (repr(of[name]) if name in of else "none" for of in (before, now))
            return f"{name} {had:.100}, not {has:.100}"
    return ""


def _accuracies(study: Study) -> dict[str, float]:
    tasks = {} if study.dense_tasks is UNSET else study.dense_tasks
    return {name: task.accuracy for name, task in tasks.items()}


def _alike(before: Mapping[str, float], now: Mapping[str, float], **tolerance: float) -> bool:
    return before.keys() == now.keys() and all(
        math.isclose(before[name], now[name], **tolerance) for name in now
    )


def _listed(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in figures.items())
