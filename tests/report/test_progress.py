"""Progress: a stage has its line or its bar, also where several models take their turns."""

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from grasp_deploy.report.progress import LOG_EVERY_SECONDS, share_done, stage_bars

Told = Callable[..., str]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """The text printed for stages of (name, steps, seconds of a step) and further figures."""
    seconds = 0.0
    monkeypatch.setattr("grasp_deploy.report.progress.time.monotonic", lambda: seconds)

    def follow(
        *stages: tuple[str, int, float],
        terminal: bool = False,
        expect: dict[str, float] | None = None,
        **figures: object,
    ) -> str:
        nonlocal seconds
        console = Console(file=io.StringIO(), width=200, force_terminal=terminal)
        with stage_bars(console, expect or {}) as on_progress:
            for name, steps, each in stages:
                for step in range(1, steps + 1):
                    on_progress({"stage": name, "step": step, "steps": steps, **figures})
                    seconds += each if step < steps else 0.0
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    return follow


def test_a_line_at_the_end_and_some_before(told: Told) -> None:
    every = LOG_EVERY_SECONDS
    assert told(("scales", 4, every)).splitlines() == [
        f"calibrating scales 2/4  {2 * every:.0f} s left",
        f"calibrating scales 3/4  {every:.0f} s left",
        f"calibrating scales 4/4  in {3 * every:.0f} s",
    ]


def test_the_next_model_has_lines_and_bars_of_its_own(told: Told) -> None:
    stages = ("scales", 3, 1.0), ("export", 2, 1.0), ("scales", 3, 2.0)
    assert told(*stages).splitlines() == [
        "calibrating scales 3/3  in 2 s",
        "writing tensors 2/2  in 1 s",
        "calibrating scales 3/3  in 4 s",
    ]
    last = told(*stages, terminal=True).rsplit("\x1b[2K", 1)[-1]
    assert last.count("3/3") == 2


def test_a_divergence_is_no_loss(told: Told) -> None:
    line = told(("recovery", 1, 1.0), divergence=0.25)
    assert line == "recovering 1/1  in 0 s  0.250 nats from dense\n"


def test_the_time_left_in_all_weighs_stages_by_what_was_expected(told: Told) -> None:
    every = LOG_EVERY_SECONDS
    lines = told(("rounds", 4, every), ("export", 1, 1.0), expect={"rounds": 30.0, "scales": 10.0})
    assert f"3/4  {every:.0f} s left, 47 s left in all" in lines
    assert f"4/4  in {3 * every:.0f} s, 27 s left in all" in lines
    assert lines.splitlines()[-1] == "writing tensors 1/1  in 0 s"
    assert share_done({"rounds": 30.0, "scales": 10.0}, "scales", 0.5) == 0.875


def test_no_less_is_left_in_all_than_in_the_stage(told: Told) -> None:
    """In a stage of many steps, and in one slower than expected."""
    every = LOG_EVERY_SECONDS
    stages = ("rounds", 198, every), ("scales", 40, 90 * every)
    said = told(*stages, expect={"rounds": 1.0, "scales": 9.0, "export": 0.1})
    pairs = re.findall(r"(\d+) s left, (\d+) s left in all", said)
    assert len(pairs) > 200 and all(int(whole) >= int(stage) for stage, whole in pairs)


def test_in_the_last_stage_no_more_is_left_in_all_however_slow_others_were(told: Told) -> None:
    stages = ("rounds", 40, 90 * LOG_EVERY_SECONDS), ("scales", 4, LOG_EVERY_SECONDS)
    last = told(*stages, expect={"rounds": 1.0, "scales": 9.0}).split("calibrating")[1:]
    assert [re.findall(r"(\d+) s", line) for line in last] == [["40", "40"], ["20", "20"], ["60"]]
