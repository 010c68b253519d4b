"""Child processes: started and stopped, and modules that answer JSON requests in one.

The memory of a child is freed with it. Requests go to its stdin, one per line. Answers come from a
separate pipe, because vLLM prints to stdout.
"""

from __future__ import annotations

import json
import logging
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from grasp_deploy.errors import ChildError, InputError

Ask = Callable[[dict[str, Any]], dict[str, Any]]
LOOK_SECONDS = 0.5
logger = logging.getLogger(__name__)


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    pass_fds: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command in its own process group, with an open stdin and all output in a file."""
    logger.info("starting: %s (log: %s)", shlex.join(command), log)
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )


def stop(process: subprocess.Popen[bytes], grace_seconds: float = 20.0) -> None:
    """Terminate a started command, then kill the rest of its process group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
    with suppress(ProcessLookupError):  # the usual case: none is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # what it had not read of its input
            process.stdin.close()


def log_tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log, for an error message."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])


@contextmanager
def child(
    module: str,
    environment: Mapping[str, str] | None = None,
    *,
    name: str,
    timeout_seconds: float = 1800.0,
) -> Iterator[Ask]:
    """Run a module that calls `answer_requests`; yields the function that asks it.

    Asking raises InputError if the child did. It raises ChildError with the end of the log if the
    child fails or does not answer within `timeout_seconds`. The child ends with the block.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        answers, writing = os.pipe()
        command = [sys.executable, "-P", "-m", module, str(writing)]
        process = start(command, environment or os.environ, log, pass_fds=(writing,))
        os.close(writing)

        def ask(request: dict[str, Any]) -> dict[str, Any]:
            _send(process, request)
            reply = _receive(process, answers, timeout_seconds)
            if isinstance(reply, str):
                raise ChildError(f"{name} {reply}; its log ends:\n{log_tail(log)}")
            if "input_error" in reply:
                raise InputError(reply["input_error"])
            answer: dict[str, Any] = reply["answer"]
            return answer

        try:
            yield ask
        finally:
            os.close(answers)
            stop(process)


def answer_requests(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests until stdin ends. Called in the child."""
    with os.fdopen(int(sys.argv[1]), "w") as answers:
        for line in sys.stdin:
            try:
                reply: dict[str, Any] = {"answer": answer(json.loads(line))}
            except InputError as error:
                reply = {"input_error": str(error)}
            print(json.dumps(reply), file=answers, flush=True)


def _send(process: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    assert process.stdin is not None, "started with a pipe"
    with suppress(BrokenPipeError):  # it has ended: _receive reports that
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()


def _receive(
    process: subprocess.Popen[bytes], answers: int, timeout_seconds: float
) -> dict[str, Any] | str:
    line, deadline = b"", time.monotonic() + timeout_seconds
    while not line.endswith(b"\n"):
        if time.monotonic() > deadline:
            return f"gave no answer within {timeout_seconds:g} s"
        if select.select([answers], [], [], LOOK_SECONDS)[0]:
            part = os.read(answers, 2**16)
            line += part
            if part:
                continue
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
        if process.poll() is not None:  # its own children may still hold the pipe
            return f"failed with exit status {process.returncode}"
    reply: dict[str, Any] = json.loads(line)
    return reply
