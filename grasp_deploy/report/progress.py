"""Progress on the error stream: loss, kept shares and time left, as bars or as lines of a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Watcher = Callable[[dict[str, Any]], None]

STAGES = {
    "rounds": "cutting in rounds",
    "criterion": "scoring units",
    "gates": "learning gates",
    "swaps": "swapping KV groups",
    "compensation": "compensating",
    "scales": "calibrating scales",
    "export": "writing tensors",
}
LOG_EVERY_SECONDS = 20.0


@contextmanager
def stage_bars(console: Console) -> Iterator[Watcher]:
    """Follows rows of metrics with a bar for each stage, or in a log with a line now and then."""
    if not console.is_terminal:
        yield log_lines(console)
        return
    columns = (
        TextColumn("{task.description:18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console) as progress:

        def follow(row: dict[str, Any]) -> None:
            stage = row["stage"]
            if stage not in tasks:
                tasks[stage] = progress.add_task(label(stage), total=row["steps"], figures="")
            progress.update(tasks[stage], completed=row["step"], figures=figures(row))

        yield follow


def log_lines(console: Console) -> Watcher:
    """Follows rows of metrics with a line at a stage's end and every few seconds before."""
    began: dict[str, tuple[float, int]] = {}  # stage: when its first row came, and its step
    said: dict[str, float] = {}
    ended: set[str] = set()

    def follow(row: dict[str, Any]) -> None:
        if row["step"] == row["steps"] and row["stage"] in ended:
            return
        now, stage, step, steps = time.monotonic(), row["stage"], row["step"], row["steps"]
        start, first_step = began.setdefault(stage, (now, step))
        if step < steps and now - said.setdefault(stage, now) < LOG_EVERY_SECONDS:
            return
        said[stage] = now
        if step == steps:
            ended.add(stage)
        left = (now - start) / max(1, step - first_step) * (steps - step)
        clock = f"{left:.0f} s left" if step < steps else f"in {now - start:.0f} s"
        text = f"{label(stage)} {step}/{steps}  {clock}  {figures(row)}"
        console.print(text.rstrip(), soft_wrap=True, highlight=False)

    return follow


def label(stage: str) -> str:
    return STAGES.get(stage, stage)


def figures(row: dict[str, Any]) -> str:
    """Loss and kept shares, where the row has them."""
    if "loss" not in row:
        return ""
    text = f"loss {row['loss']:.3f}"
    if "kept_ffn_share" in row:
        text += f"  FFN {row['kept_ffn_share']:.0%}  KV {row['kept_kv_share']:.0%}"
    return text
