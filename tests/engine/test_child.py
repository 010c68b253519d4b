"""A child answers, remembers, fails in ways that its parent can tell, and can be stopped."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.engine.child import Ask, answer_requests, child, log_tail, running
from grasp_deploy.errors import ChildError, InputError
from tests.engine.processes import DEAF_FAMILY, assert_gone, descendants, wait_until

ROOT = Path(__file__).parents[2]
asked: list[str] = []


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """In the child, which this module is as a program: do what is asked, and remember it."""
    asked.append(request["do"])
    match request["do"]:
        case "refuse":
            raise InputError("a reason, a remedy")
        case "crash":
            raise RuntimeError("something broke")
        case "die":
            os._exit(3)
        case "sleep":
            time.sleep(60)
    print("noise on stdout")
    return {"asked": asked, "process": os.getpid()}


@contextmanager
def echo(timeout_seconds: float = 60.0) -> Iterator[Ask]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    module = "tests.engine.test_child"
    with child(module, environment, name="echo", timeout_seconds=timeout_seconds) as ask:
        yield ask


def test_it_answers_remembers_refuses_and_is_gone_afterwards() -> None:
    with echo() as ask:
        first = ask({"do": "a"})
        assert first["asked"] == ["a"] and first["process"] != os.getpid()
        with pytest.raises(InputError, match=r"^a reason, a remedy$"):
            ask({"do": "refuse"})
        assert ask({"do": "b"}) == {**first, "asked": ["a", "refuse", "b"]}
        assert Path(f"/proc/{first['process']}").exists()
    assert not Path(f"/proc/{first['process']}").exists()


@pytest.mark.parametrize(
    ("what", "status", "log"), [("crash", 1, "RuntimeError: something broke"), ("die", 3, "")]
)
def test_a_failure_is_told_with_the_end_of_its_log(what: str, status: int, log: str) -> None:
    with echo() as ask:
        ask({"do": "a"})
        with pytest.raises(ChildError) as caught:
            ask({"do": what})
        assert str(caught.value).startswith(f"echo failed with exit status {status}; its log ends:")
        assert log in str(caught.value)
        with pytest.raises(ChildError, match=f"exit status {status}"):
            ask({"do": "a"})


def test_silence_is_told_too() -> None:
    with echo(timeout_seconds=0.6) as ask, pytest.raises(ChildError, match=r"within 0\.6 s"):
        ask({"do": "sleep"})


def test_the_end_of_the_block_ends_the_whole_group_even_those_that_ignore_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, before = tmp_path / "log", descendants(os.getpid()).keys()
    with running([sys.executable, "-c", DEAF_FAMILY], os.environ, log, grace_seconds=0.3):
        wait_until(lambda: log_tail(log) == "ready")
        ours = descendants(os.getpid()).keys() - before
        assert len(ours) == 3, "a watcher, a child, a grandchild"
    assert_gone(ours)
    assert "killed, since it had not ended 0.3 s after SIGTERM" in caplog.text


if __name__ == "__main__":
    answer_requests(answer)
