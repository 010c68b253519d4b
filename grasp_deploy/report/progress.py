"""Progress on the error stream: loss, kept shares and time left, as bars or as lines of a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from grasp_deploy.files.progress import OnProgress

STAGES = {
    "own-text": "writing own text",
    "rounds": "cutting in rounds",
    "criterion": "scoring units",
    "gates": "learning gates",
    "compensation": "compensating",
    "scales": "calibrating scales",
    "healing": "healing",
    "export": "writing tensors",
}
COLUMNS = (
    TextColumn("{task.description:18}", markup=False),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
    TextColumn("{task.fields[figures]}", markup=False),
)
LEARNT = 0.02  # share of the whole from which on its time can be foretold
LOG_EVERY_SECONDS = 20.0
logger = logging.getLogger(__name__)


class Whole:
    """How far a run has come in all its stages, and the time that is left for them."""

    def __init__(self, expect: Callable[[], dict[str, float]]) -> None:
        self._expect = expect  # seconds by stage, in order
        self._began: tuple[float, float] | None = None  # a time, and the share done by then

    @cached_property
    def _expected(self) -> dict[str, float]:
        return self._expect()

    def text(self, stage: str, share: float, now: float) -> str:
        """The stage's place and the time left, such as "stage 2 of 5, 0:12:30 left in all"."""
        names, seconds = list(self._expected), list(self._expected.values())
        if stage not in names:
            return ""
        place = names.index(stage)
        done = (sum(seconds[:place]) + share * seconds[place]) / sum(seconds)
        if self._began is None:
            self._began = now, done
        began, before = self._began
        text = f"stage {place + 1} of {len(names)}"
        if done - before < LEARNT:
            return text
        left = (1 - done) * (now - began) / (done - before)
        return f"{text}, {timedelta(seconds=round(left))} left in all"


@contextmanager
def stage_bars(
    console: Console, expect: Callable[[], dict[str, float]] = dict
) -> Iterator[OnProgress]:
    """Follow rows of metrics with a bar for each stage.

    Where the console is no terminal, with a line at a stage's end and every few seconds before.
    `expect` is called at the first row. With the seconds by stage that it gives, the time left for
    all of them is shown, too.
    """
    whole = Whole(expect)
    tasks: dict[str, Task] = {}  # by stage
    told: dict[str, float] = {}  # by stage: seconds on the clock at its last line
    bars = Progress(
        *COLUMNS,
        console=console,
        disable=not console.is_terminal,
        get_time=time.monotonic,
        speed_estimate_period=float("inf"),
    )

    def follow(row: dict[str, Any]) -> None:
        stage, step, now = row["stage"], row["step"], time.monotonic()
        label = STAGES.get(stage, stage)
        if member := row.get("member"):  # of a family
            stage, label = f"{member} {stage}", f"{member}: {label}"
        task = tasks.get(stage)
        if task is None or step < task.completed:  # the first of it, or of the next model's
            logger.info("%s: begins", label)
            bars.add_task(label, total=row["steps"], figures="")
            task = tasks[stage] = bars.tasks[-1]
            told[stage] = now
        again = step == task.completed
        share = step / max(1, row["steps"])
        shown = "  ".join(filter(None, (whole.text(row["stage"], share, now), figures(row))))
        bars.update(task.id, completed=step, figures=shown)
        due = task.finished or now - told[stage] >= LOG_EVERY_SECONDS
        if due and not again and not console.is_terminal:
            told[stage] = now
            left = f"{task.time_remaining or 0:.0f} s left"
            clock = f"in {task.elapsed:.0f} s" if task.finished else left
            text = f"{task.description} {step}/{row['steps']}  {clock}  {shown}"
            console.print(text.rstrip(), soft_wrap=True, highlight=False)

    with bars:
        yield follow


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
