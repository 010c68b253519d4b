"""Progress on the error stream: loss, kept shares and time left, as bars or as lines of a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
WHOLE = "all stages"
LOG_EVERY_SECONDS = 20.0
logger = logging.getLogger(__name__)


def share_done(expected: Mapping[str, float], stage: str, share: float) -> float:
    """The share of a run that is done, by what stages weigh, where a share of a stage is done."""
    names = list(expected)
    before = sum(expected[name] for name in names[: names.index(stage)])
    return (before + share * expected[stage]) / sum(expected.values())


@contextmanager
def stage_bars(console: Console, expected: Mapping[str, float] = {}) -> Iterator[OnProgress]:
    """Follow rows of metrics with a bar for each stage.

    Where the console is no terminal, with a line at a stage's end and every few seconds before.
    Stages in `expected` have a bar together too, in which they weigh what it says.
    """
    tasks: dict[str, Task] = {}  # by stage
    told: dict[str, float] = {}  # by stage: seconds on the clock at its last line
    bars = Progress(
        *COLUMNS,
        console=console,
        disable=not console.is_terminal,
        get_time=time.monotonic,
        speed_estimate_period=float("inf"),
    )

    def in_all(row: dict[str, Any]) -> str:
        """The time left in all stages; their bar is brought up to date."""
        if row["stage"] not in expected:
            return ""
        whole = tasks.get(WHOLE)
        if whole is None:
            bars.add_task(WHOLE, total=100, figures="")
            whole = tasks[WHOLE] = bars.tasks[-1]
        share = share_done(expected, row["stage"], row["step"] / max(1, row["steps"]))
        place = f"stage {list(expected).index(row['stage']) + 1} of {len(expected)}"
        bars.update(whole.id, completed=round(100 * share), figures=place)
        return f", {whole.time_remaining:.0f} s in all" if whole.time_remaining else ""

    def follow(row: dict[str, Any]) -> None:
        stage, step, now = row["stage"], row["step"], time.monotonic()
        left_in_all = in_all(row)
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
        bars.update(task.id, completed=step, figures=figures(row))
        due = task.finished or now - told[stage] >= LOG_EVERY_SECONDS
        if due and not again and not console.is_terminal:
            told[stage] = now
            left = f"{task.time_remaining or 0:.0f} s left"
            clock = f"in {task.elapsed:.0f} s" if task.finished else left
            text = f"{task.description} {step}/{row['steps']}  {clock}{left_in_all}  {figures(row)}"
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
