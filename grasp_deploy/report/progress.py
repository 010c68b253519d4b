"""Progress on the error stream: loss, kept shares and time left, as bars or as lines of a log."""

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
    "predictions": "reading the dense model",
    "scales": "calibrating scales",
    "recovery-text": "writing more text",
    "recovery": "recovering",
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
    """The share of a run that is done at some share of a stage; `expected` weighs the stages."""
    names = list(expected)
    before = sum(expected[name] for name in names[: names.index(stage)])
    return (before + share * expected[stage]) / (sum(expected.values()) or 1)


@contextmanager
def stage_bars(console: Console, expected: Mapping[str, float] = {}) -> Iterator[OnProgress]:
    """Follow rows of metrics with a bar for each stage.

    If the console is no terminal, print a line at a stage's end and every few seconds before.
    Stages in `expected` also have one bar together, in which its values weigh them.
    """
    tasks: dict[str, Task] = {}  # by label
    told: dict[str, float] = {}  # by label: seconds on the clock at its last line
    bars = Progress(
        *COLUMNS,
        console=console,
        disable=not console.is_terminal,
        get_time=time.monotonic,
        speed_estimate_period=float("inf"),
    )

    def begin(label: str, total: int) -> Task:
        bars.add_task(label, total=total, figures="")
        tasks[label], told[label] = bars.tasks[-1], time.monotonic()
        return tasks[label]

    def left_behind(row: dict[str, Any]) -> float | None:
        """The seconds that later stages take, None if unknown; brings the bar of all up to date."""
        if row["stage"] not in expected:
            return None
        whole = tasks.get(WHOLE) or begin(WHOLE, 100)
        share = share_done(expected, row["stage"], row["step"] / max(1, row["steps"]))
        place = f"stage {list(expected).index(row['stage']) + 1} of {len(expected)}"
        bars.update(whole.id, completed=round(100 * share, 6), figures=place)
        later = 100 * (1 - share_done(expected, row["stage"], 1.0))
        return later / whole.speed if whole.speed else None

    def follow(row: dict[str, Any]) -> None:
        step, behind = row["step"], left_behind(row)
        label = STAGES.get(row["stage"], row["stage"])
        label = f"{row['member']}: {label}" if "member" in row else label  # of a family
        task = tasks.get(label)
        if task is None or step < task.completed:  # its first row, or that of the next model
            logger.info("%s: begins", label)
            task = begin(label, row["steps"])
        again = step == task.completed
        bars.update(task.id, completed=step, figures=figures(row))
        due = task.finished or time.monotonic() - told[label] >= LOG_EVERY_SECONDS
        if due and not again and not console.is_terminal:
            told[label] = time.monotonic()
            clock = "" if task.time_remaining is None else f"{task.time_remaining:.0f} s left"
            clock = f"in {task.elapsed:.0f} s" if task.finished else clock
            left = None if behind is None else behind + (task.time_remaining or 0)
            clock += f", {left:.0f} s left in all" if clock and left else ""
            text = f"{label} {step}/{row['steps']}  {clock}  {figures(row)}"
            console.print(text.rstrip(), soft_wrap=True, highlight=False)

    with bars:
        yield follow


def figures(row: dict[str, Any]) -> str:
    """Loss or divergence, and kept shares, where the row has them."""
    text = ""
    if "divergence" in row:
        text = f"{row['divergence']:.3f} nats from dense"
    elif "loss" in row:
        text = f"loss {row['loss']:.3f}"
    if "kept_ffn_share" in row:
        text += f"  FFN {row['kept_ffn_share']:.0%}  KV {row['kept_kv_share']:.0%}"
    return text
