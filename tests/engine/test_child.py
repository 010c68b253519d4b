"""A child answers, remembers, and fails in ways that its parent can tell."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from grasp_deploy.engine.child import Ask, child
from grasp_deploy.errors import ChildError, InputError

ROOT = Path(__file__).parents[2]


@contextmanager
def echo(timeout_seconds: float = 60.0) -> Iterator[Ask]:
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(ROOT)}
    module = "tests.engine.echo_child"
    with child(module, environment, name="echo", timeout_seconds=timeout_seconds) as ask:
        yield ask


def test_it_answers_and_remembers_and_is_gone_afterwards() -> None:
    with echo() as ask:
        first = ask({"do": "a"})
        assert first["asked"] == ["a"] and first["process"] != os.getpid()
        assert ask({"do": "b"}) == {**first, "asked": ["a", "b"]}
        assert Path(f"/proc/{first['process']}").exists()
    assert not Path(f"/proc/{first['process']}").exists()


def test_what_it_refuses_is_refused_here_and_it_goes_on() -> None:
    with echo() as ask:
        with pytest.raises(InputError, match=r"^a reason, a remedy$"):
            ask({"do": "refuse"})
        assert ask({"do": "a"})["asked"] == ["refuse", "a"]


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
