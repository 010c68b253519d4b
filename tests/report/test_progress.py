"""Progress: a stage has its line or its bar, also where several models take their turns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from grasp_deploy.report.progress import LOG_EVERY_SECONDS, stage_bars


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("grasp_deploy.report.progress.time.monotonic", clock)
    return clock


def told(clock: Clock, *stages: tuple[str, int, float]) -> list[str]:
    """The lines of stages, each with its steps and the seconds that each of them takes."""
    text = io.StringIO()
    with stage_bars(Console(file=text, width=200)) as on_progress:
        for name, steps, seconds in stages:
            for step in range(1, steps + 1):
                on_progress({"stage": name, "step": step, "steps": steps})
                clock.seconds += seconds if step < steps else 0.0
    return text.getvalue().splitlines()


def test_a_line_at_the_end_and_some_before(clock: Clock) -> None:
    every = LOG_EVERY_SECONDS
    assert told(clock, ("scales", 4, every)) == [
        f"calibrating scales 2/4  {2 * every:.0f} s left",
        f"calibrating scales 3/4  {every:.0f} s left",
        f"calibrating scales 4/4  in {3 * every:.0f} s",
    ]


def test_the_next_model_begins_anew(clock: Clock) -> None:
    one, other = (
        told(clock, ("scales", 3, 1.0), ("export", 2, 1.0)),
        told(clock, ("scales", 3, 1.0)),
    )
    assert one == ["calibrating scales 3/3  in 2 s", "writing tensors 2/2  in 1 s"]
    assert other == one[:1]
    twice = told(clock, ("scales", 3, 1.0), ("export", 2, 1.0), ("scales", 3, 2.0))
    assert twice == [*one, "calibrating scales 3/3  in 4 s"]


def test_bars_begin_anew_too(clock: Clock) -> None:
    text = io.StringIO()
    with stage_bars(Console(file=text, width=200, force_terminal=True)) as on_progress:
        for _ in range(2):
            for step in (1, 2):
                on_progress({"stage": "scales", "step": step, "steps": 2})
    last = text.getvalue().rsplit("\x1b[2K", 1)[-1]
    assert last.count("2/2") == 2


def test_a_distance_is_no_loss(clock: Clock) -> None:
    text = io.StringIO()
    with stage_bars(Console(file=text, width=200)) as on_progress:
        on_progress(
            {"stage": "healing", "step": 1, "steps": 1, "distance": 0.25, "heldout_loss": None}
        )
    assert text.getvalue() == "healing 1/1  in 0 s  distance to dense 0.250\n"
