"""Kill commands at a given event: a warm process forks them, so imports are paid once.

A fork counts its events: rows of progress, and what it does to files below one folder (opens,
renames, removals). It kills itself before the event with a given number, the same place on any
machine.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any, NoReturn

from grasp_deploy.engine.child import answer_requests, child
from tests.cli.command import environment

Run = Callable[..., list[str] | None]
OPERATIONS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"})


@contextmanager
def forker() -> Iterator[Run]:
    """A function that runs a command in a fork of a warm process, for the length of a block.

    It takes the command, a folder, and the number of the event to be killed at, if any. It returns
    None if the fork was killed, else each event: the stage of a row of progress, or "" for an
    operation below the folder.
    """
    with child("tests.crash_runner", environment(), name="the warm process") as ask:

        def run(command: str, folder: object, kill_at: int | None = None) -> list[str] | None:
            request = {"words": command.split(), "folder": str(folder), "kill_at": kill_at}
            events: list[str] | None = ask(request)["events"]
            return events

        yield run


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The far end: run a command in a fork; RuntimeError if it ends by itself and badly."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        _work(writing, **request)
    os.close(writing)
    with os.fdopen(reading) as rows:
        events = rows.read().split("\n")[:-1]
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"{request['words']} ended with exit status {status}")
    return {"events": None if status else events}


def _work(writing: int, words: list[str], folder: str, kill_at: int | None) -> NoReturn:
    """In the fork: run the command, tell its events, and leave without the parent's clean-up."""
    numbers, code = count(1), 1

    def tell(stage: str) -> None:
        os.write(writing, f"{stage}\n".encode())
        if next(numbers) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event in OPERATIONS and folder in str(arguments[0]):
            tell("")

    try:
        follow = nullcontext(lambda row: tell(row["stage"]))
        progress.stage_bars = lambda *_: follow  # type: ignore[assignment]
        stages.SAVE_EVERY_SECONDS = -1.0  # at every step
        sys.addaudithook(look)
        app(words)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    import transformers.models.llama.modeling_llama  # noqa: F401  (before the forks)

    import grasp_deploy.compression.compress  # noqa: F401
    from grasp_deploy.cli.app import app
    from grasp_deploy.compression import stages
    from grasp_deploy.report import progress

    answer_requests(answer)
