"""A process of our own: its start, its end, and the last lines of its log."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

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
    """Ask a started command to end, then kill whatever is left of its process group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
    with suppress(ProcessLookupError):  # the usual case: nobody is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # what it had not read of its input
            process.stdin.close()


def log_tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log, for an error message."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])
