"""Progress on the error stream: loss, kept shares and time left, as bars or as lines of a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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

from grasp_deploy.files.progress import OnProgress

STAGES = {
    "rounds": "cutting in rounds",
    "criterion": "scoring units",
    "gates": "learning gates",
    "swaps": "swapping KV groups",
    "compensation": "compensating",
    "scales": "calibrating scales",
    "healing": "healing",
    "export": "writing tensors",
}
LOG_EVERY_SECONDS = 20.0
logger = logging.getLogger(__name__)


@contextmanager
def stage_bars(console: Console) -> Iterator[OnProgress]:
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
    steps: dict[str, int] = {}
    with Progress(*columns, console=console) as progress:

        def follow(row: dict[str, Any]) -> None:
            stage = row["stage"]
            if row["step"] < steps.get(stage, 0):  # the next model's
                tasks.pop(stage)
            steps[stage] = row["step"]
            if stage not in tasks:
                logger.info("%s: begins", label(stage))
                tasks[stage] = progress.add_task(label(stage), total=row["steps"], figures="")
            progress.update(tasks[stage], completed=row["step"], figures=figures(row))

        yield follow


@dataclass
class _Stage:
    began: float  # seconds on the clock at its first row
    first_step: int
    said: float  # seconds on the clock at its last line
    step: int


def log_lines(console: Console) -> OnProgress:
    """Follows rows of metrics with a line at a stage's end and every few seconds before."""
    stages: dict[str, _Stage] = {}

    def follow(row: dict[str, Any]) -> None:
        now, step, steps = time.monotonic(), row["step"], row["steps"]
        stage = stages.get(row["stage"])
        if stage is None or step < stage.step:  # the first of it, or of the next model's
            stage = stages[row["stage"]] = _Stage(now, step, now, -1)
            logger.info("%s: begins", label(row["stage"]))
        again, stage.step = step == stage.step, step
        if again or (step < steps and now - stage.said < LOG_EVERY_SECONDS):
            return
        stage.said = now
        took = now - stage.began
        left = took / max(1, step - stage.first_step) * (steps - step)
        clock = f"{left:.0f} s left" if step < steps else f"in {took:.0f} s"
        text = f"{label(row['stage'])} {step}/{steps}  {clock}  {figures(row)}"
        console.print(text.rstrip(), soft_wrap=True, highlight=False)

    return follow


def label(stage: str) -> str:
    return STAGES.get(stage, stage)


def figures(row: dict[str, Any]) -> str:
    """Loss and kept shares, where the row has them."""
    if "distance" in row:
        return f"distance to dense {row['distance']:.3f}"
    if "loss" not in row:
        return ""
    text = f"loss {row['loss']:.3f}"
    if "kept_ffn_share" in row:
        text += f"  FFN {row['kept_ffn_share']:.0%}  KV {row['kept_kv_share']:.0%}"
    return text
