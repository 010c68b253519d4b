"""Kill commands at a given file operation: a warm process forks them, so imports are paid once.

A fork counts what it does to files below one folder (opens, renames, removals) and kills itself
before the operation with a given number. So a kill hits the same place on any machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.command import environment

OPERATIONS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"})


@dataclass(frozen=True)
class Outcome:
    """The end of a fork: whether it was killed, else how many operations it took in all."""

    killed: bool
    operations: int


class Forker:
    """The near end of a warm process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, job: str, folder: Path, kill_at: int | None = None, **arguments: Any) -> Outcome:
        """Run a job in a fork, killed before its operation number `kill_at` below `folder`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"job": job, "folder": str(folder), "kill_at": kill_at, "arguments": arguments}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the warm process is gone: see its stderr"
        status, operations = json.loads(answer)
        assert status in (0, -signal.SIGKILL), f"the job failed with {status}: see its stderr"
        return Outcome(status != 0, operations)


@contextmanager
def forker() -> Iterator[Forker]:
    """A warm process for the length of a `with` block."""
    program = "from tests.crash_runner import answer_requests; answer_requests()"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Forker(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def answer_requests() -> None:
    """The far end: a fork for each line on stdin; its exit status and operations on stdout."""
    import transformers.models.llama.modeling_llama  # noqa: F401  (for the jobs)

    import grasp_deploy.compression.compress  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _work(request, writer)
        os.close(writer)
        with os.fdopen(reader) as counts:
            operations = int(counts.read() or 0)
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), operations]), flush=True)


def _work(request: dict[str, Any], writer: int) -> None:
    """In the fork: do the job, tell its operations, and leave without the parent's clean-up."""
    code, folder, operations = 1, request["folder"], 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal operations
        if event in OPERATIONS and folder in str(arguments[0]):
            operations += 1
            if operations == request["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(count)
        JOBS[request["job"]](**request["arguments"])
        os.write(writer, str(operations).encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def compress_job(config: dict[str, Any], output: str, resume: bool = False) -> None:
    """A compression that saves its state at every step."""
    from grasp_deploy.compression import frozen_model
    from grasp_deploy.compression.compress import compress
    from grasp_deploy.config.compress_config import CompressConfig

    frozen_model.SAVE_EVERY_SECONDS = -1.0
    compress(CompressConfig(**config), output, resume=resume)


def export_job(plan: str, **arguments: Any) -> None:
    """An export of a plan."""
    from grasp_deploy.checkpoint.plan import load_plan
    from grasp_deploy.checkpoint.write.export import export

    export(load_plan(Path(plan)), **arguments)


JOBS: dict[str, Callable[..., None]] = {"compress": compress_job, "export": export_job}
