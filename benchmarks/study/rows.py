"""Rows of a study that are measured already, by an earlier run of it or by another study."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grasp_deploy.errors import InputError
from grasp_deploy.files.record import read_record
from grasp_deploy.report.records import check_record

Record = dict[str, Any]
SAME_TEXT = 1e-4  # a change of threads moves a perplexity by less, another text by more
SAME_ITEMS = 0.01  # it may turn an item or two of an accuracy, but no more


def check_study(output: Path | None, study: str) -> None:
    """InputError if a record that is there is not of this study, before anything is measured."""
    if output is not None and output.exists():
        earlier = _checked(output)
        _refuse(output, _no_study(earlier) or _other_study(earlier, study))


def rows_so_far(output: Path | None, record: Record, options: Mapping[str, Record]) -> list[Record]:
    """Rows of a record that an earlier run left; InputError if it is of something else.

    `options` are those of each variant as it would be measured now.
    """
    if output is None or not output.exists():
        return []
    check_study(output, record["study"])
    earlier = _checked(output)
    _refuse(output, _other(earlier, record) or _other_options(earlier["rows"], options))
    return list(earlier["rows"])


def rows_of_others(paths: Sequence[Path], record: Record) -> dict[tuple[str, float, int], Record]:
    """Rows of records of other studies, by the `key` of their options, budget and seed.

    InputError for a record of another model, text or other settings. Rows that do not say what they
    were made with are left out.
    """
    rows: dict[tuple[str, float, int], Record] = {}
    for path in paths:
        other = _checked(path)
        if found := _no_study(other) or _other(other, record):
            raise InputError(f"{path} {found}: leave it out of --known")
        for row in other["rows"]:
            rows |= by_options(row)
    return rows


def by_options(row: Record) -> dict[tuple[str, float, int], Record]:
    """A row by the `key` of its options, its budget and its seed; none if it tells no options.

    One that tells its mask's losses without scales is two: with no epoch of them, gates learn the
    same mask. Not so one with accuracies, which were measured with the scales alone.
    """
    if "options" not in row:  # an older record
        return {}
    keep, seed = row["keep"], row["seed"]
    rows = {(key(row["options"]), keep, seed): row}
    if "without_scales" in row and "tasks" not in row:
        told = {name: row[name] for name in row if name not in ("heldout_loss", "without_scales")}
        options = {**row["options"], "scale_epochs": 0}
        seconds = {**row["seconds"], "scales": 0.0}
        twin = {**told, "options": options, **row["without_scales"], "seconds": seconds}
        rows[key(options), keep, seed] = twin
    return rows


def key(options: Record) -> str:
    """Options in one order."""
    return json.dumps(options, sort_keys=True)


def _checked(path: Path) -> Record:
    record = read_record(path)
    check_record(record, path)
    return record


def _refuse(output: Path, found: str) -> None:
    if found:
        raise InputError(f"{output} {found}: name another file as --output, or remove it")


def _no_study(earlier: Record) -> str:
    kind = earlier["benchmark"]
    return "" if kind == "study" else f"is a record of {kind}, and not of a study"


def _other_study(earlier: Record, study: str) -> str:
    before = earlier["study"]
    return "" if before == study else f"is a record of the study {before}, and not of {study}"


def _other_options(rows: Sequence[Record], options: Mapping[str, Record]) -> str:
    """What a variant was measured with and would not be now, in words."""
    for row in rows:
        before, now = row.get("options"), options.get(row["variant"])
        if before is None or now is None:  # an older record, or a variant that is no more
            continue
        for name in [*now, *(name for name in before if name not in now)]:
            if before.get(name) != now.get(name):
                found = f"{name} {before.get(name)}, and not {now.get(name)}"
                return f"has {row['variant']!r} measured with {found}"
    return ""


def _other(earlier: Record, record: Record) -> str:
    """What tells a study's settings, text and tasks from another's, in words."""
    both = earlier, record
    before, now = (one["settings"] for one in both)
    for name in [*now, *(name for name in before if name not in now)]:
        if before.get(name) != now.get(name):
            return f"was measured with {name} {before.get(name)}, and not {now.get(name)}"
    before, now = (one["dense_perplexity"] for one in both)
    if not _alike(before, now, rel_tol=SAME_TEXT):
        return f"has the dense perplexities {_listed(before)}, and not {_listed(now)}"
    before, now = (_accuracies(one) for one in both)
    same = _alike(before, now, abs_tol=SAME_ITEMS)
    return "" if same else f"has the dense accuracies {_listed(before)}, and not {_listed(now)}"


def _accuracies(record: Record) -> dict[str, float]:
    return {task: one["accuracy"] for task, one in record.get("dense_tasks", {}).items()}


def _alike(before: dict[str, float], now: dict[str, float], **tolerance: float) -> bool:
    return before.keys() == now.keys() and all(
        math.isclose(before[name], now[name], **tolerance) for name in now
    )


def _listed(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in figures.items())
