"""Child processes that end with this one: modules that answer JSON requests, and vLLM's server.

The memory of a child is freed with it. Requests and answers have a connection of their own, because
vLLM prints to stdout.
"""

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grasp_deploy.errors import ChildError, InputError

Ask = Callable[[dict[str, Any]], dict[str, Any]]
LOOK_SECONDS = 0.5
# It waits for the end of a pipe whose other end only its parent holds, then kills its group.
WATCHER = (sys.executable, "-I", "-S", "-c", "import os; os.read(0, 1); os.kill(0, 9)")
logger = logging.getLogger(__name__)


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path | None = None,
    *,
    pass_fds: Collection[int] = (),
    grace_seconds: float = 10.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command for the length of a `with` block, its output in a file if one is named.

    Then it is terminated, and after `grace_seconds` all that is left of its process group is
    killed. If this process is killed first, the group is killed at once.
    """
    logger.info("starting: %s (log: %s)", shlex.join(command), log)
    with (
        subprocess.Popen(WATCHER, stdin=subprocess.PIPE, process_group=0) as watcher,
        log.open("wb") if log else nullcontext() as output,
    ):
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if log else None,
            process_group=watcher.pid,
            pass_fds=pass_fds,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(grace_seconds)
            except subprocess.TimeoutExpired:
                logger.warning("killed, since it had not ended %g s after SIGTERM", grace_seconds)
            os.killpg(watcher.pid, signal.SIGKILL)
            process.wait()


def log_tail(log: Path) -> str:
    """The last lines of a log, for an error message."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-25:])


@contextmanager
def child(
    module: str,
    environment: Mapping[str, str],
    *,
    name: str,
    timeout_seconds: float = 1800.0,
) -> Iterator[Ask]:
    """Run a module that calls `answer_requests`; yields the function that asks it.

    Asking raises InputError if the child did. It raises ChildError with the end of the log if the
    child fails or does not answer within `timeout_seconds`. The child ends with the block.
    """
    ours, theirs = Pipe()
    command = [sys.executable, "-P", "-m", module, str(theirs.fileno())]

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        with suppress(ConnectionError):  # it has ended: _receive reports that
            ours.send_bytes(json.dumps(request).encode())
        reply = _receive(process, ours, timeout_seconds)
        if isinstance(reply, str):
            raise ChildError(f"{name} {reply}; its log ends:\n{log_tail(log)}")
        if "input_error" in reply:
            raise InputError(reply["input_error"])
        answer: dict[str, Any] = reply["answer"]
        return answer

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with running(command, environment, log, pass_fds=(theirs.fileno(),)) as process, ours:
            theirs.close()
            yield ask


def answer_requests(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests until the parent closes the connection. Called in the child."""
    with Connection(int(sys.argv[1])) as requests:
        while True:
            try:
                request = json.loads(requests.recv_bytes())
            except EOFError:
                return
            try:
                reply: dict[str, Any] = {"answer": answer(request)}
            except InputError as error:
                reply = {"input_error": str(error)}
            requests.send_bytes(json.dumps(reply).encode())


def _receive(
    process: subprocess.Popen[bytes], answers: Connection, timeout_seconds: float
) -> dict[str, Any] | str:
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        if answers.poll(LOOK_SECONDS):
            with suppress(EOFError, ConnectionError):
                reply: dict[str, Any] = json.loads(answers.recv_bytes())
                return reply
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
        if process.poll() is not None:  # its own children may still hold the connection
            return f"failed with exit status {process.returncode}"
    return f"gave no answer within {timeout_seconds:g} s"


def guard(command: list[str], grace_seconds: float) -> int:
    """Run a command until it ends, or until SIGTERM or SIGINT; returns its exit status for a shell.

    The command is vLLM's server. It kills its engine when the time to drain is over, and then waits
    without a limit for clients whose answers cannot go on. So it is killed after `grace_seconds`.
    A second signal raises KeyboardInterrupt, and the command is killed at once.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        running(command, os.environ, grace_seconds=grace_seconds) as process,
        suppress(KeyboardInterrupt),
    ):
        process.wait()
    status: int = process.returncode
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    try:
        sys.exit(guard(sys.argv[2:], float(sys.argv[1])))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)
