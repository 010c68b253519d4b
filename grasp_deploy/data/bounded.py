"""Programs inside strangers' models, run in a child process with limits of time and memory.

Chat templates are such programs, and tokenizers, whose rules may multiply a text without end.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from grasp_deploy.errors import first_line

PATIENCE_SECONDS = 10.0  # of computing, for one answer
MEMORY_BYTES = 2**31  # that the child may take beside what is there already

Reply = dict[str, Any]


@contextmanager
def bounded(answer: Callable[[Any], Reply]) -> Iterator[Callable[[Any], Reply]]:
    """`answer` as a function that runs in a child; the child starts with the first question.

    Questions and replies are JSON. Where there is no answer, the reply is its "refusal", a reason
    of one line. What is printed on the error stream there is dropped.
    """
    near, far = multiprocessing.Pipe()
    child = 0

    def ask(question: Any) -> Reply:
        nonlocal child
        if not child:
            child = os.fork()  # a new interpreter would import all again
            if not child:
                _serve(near, far, answer)
            far.close()  # so that the end of the child is the end of the pipe
        try:
            near.send_bytes(json.dumps(question, default=str).encode())  # messages hold dates
            return dict(json.loads(near.recv_bytes()))
        except (EOFError, OSError):
            return {"refusal": _ending(child)}

    try:
        yield ask
    finally:
        near.close()
        if child:
            with suppress(ProcessLookupError, ChildProcessError):  # where SIGCHLD is ignored
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _ending(child: int) -> str:
    with suppress(ChildProcessError):
        # It stays a zombie, whose number nobody else gets, until the block ends.
        end = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        if end and end.si_status in (signal.SIGALRM, signal.SIGPROF):
            return f"it did not end within {PATIENCE_SECONDS:g} s"
    return "it ended the process that it ran in"


def _serve(near: Connection, far: Connection, answer: Callable[[Any], Reply]) -> NoReturn:
    """The child: answer each question that comes, until the parent ends."""
    try:
        near.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each thread would take address space
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)  # ends this process, whatever it is at
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + MEMORY_BYTES
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        while True:
            question = json.loads(far.recv_bytes())
            _limit(PATIENCE_SECONDS)
            try:
                reply = answer(question)
            except BaseException as error:  # these programs raise errors of their own; Rust panics
                reply = {"refusal": first_line(error)}
            far.send_bytes(json.dumps(reply).encode())
            _limit(0)
    finally:
        os._exit(0)  # without the parent's clean-up


def _limit(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 6 * seconds)  # on the clock: the machine may be busy
