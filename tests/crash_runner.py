"""Commands that die at a given moment: a warm process forks them, so that imports are paid once."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.command import environment

DONE, FAILED, KILLED = "done", "failed", "killed"


class Forker:
    """The near end of a warm process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, job: str, kill_after_seconds: float | None = None, **arguments: Any) -> str:
        """Run a job in a fork: "done", or "killed" that many seconds after its work began."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"job": job, "kill_after": kill_after_seconds, "arguments": arguments}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer in (DONE, KILLED), answer or "the warm process is gone: see its stderr"
        return answer


@contextmanager
def forker() -> Iterator[Forker]:
    """A warm process for the length of a `with` block."""
    command = [
        sys.executable,
        "-c",
        "from tests.crash_runner import answer_requests; answer_requests()",
    ]
    process = subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Forker(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def answer_requests() -> None:
    """The far end: a fork for each line on stdin, a word on stdout for each that has ended."""
    import transformers.models.llama.modeling_llama  # noqa: F401  (what the jobs will need)

    import grasp_deploy.compression.compress  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _work(JOBS[request["job"]], request["arguments"], writer)
        os.close(writer)
        print(_end_of(child, reader, request["kill_after"]), flush=True)
        os.close(reader)


def _end_of(child: int, began: int, kill_after_seconds: float | None) -> str:
    """Wait for a fork, or kill it so long after its work began."""
    if kill_after_seconds is not None:
        select.select([began], [], [])  # readable when work has begun, and when the fork is gone
        time.sleep(kill_after_seconds)
        os.kill(child, signal.SIGKILL)  # not reaped yet, so the number is still its own
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return KILLED if os.WTERMSIG(status) == signal.SIGKILL else FAILED
    return DONE if os.WEXITSTATUS(status) == 0 else FAILED


def _work(job: Callable[..., None], arguments: dict[str, Any], writer: int) -> None:
    """In the fork: do the job, say when it begins, and leave without the parent's clean-up."""
    code = 1
    try:
        job(lambda: os.write(writer, b"."), **arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def compress_job(begin: Callable[[], object], config: dict, output: str, resume: bool) -> None:
    """A compression that saves its state every 20 ms; its work begins with the first step."""
    from grasp_deploy.compression import resume as workspace
    from grasp_deploy.compression.compress import compress
    from grasp_deploy.config.compress_config import CompressConfig

    workspace.SAVE_EVERY_SECONDS = 0.02
    rows = iter([begin])

    def on_progress(row: dict[str, Any]) -> None:
        for call in rows:  # for the first row alone
            call()

    compress(CompressConfig(**config), output, resume=resume, on_progress=on_progress)


def export_job(
    begin: Callable[[], object], plan: str, begin_at_share: float, **arguments: Any
) -> None:
    """An export whose work counts as begun when so many of its tensors are written."""
    from grasp_deploy.checkpoint.plan import load_plan
    from grasp_deploy.checkpoint.write.export import export

    begun: list[object] = []

    def on_progress(done: int, total: int) -> None:
        if not begun and done >= begin_at_share * total:
            begun.append(begin())

    export(load_plan(Path(plan)), on_progress=on_progress, **arguments)


JOBS: dict[str, Callable[..., None]] = {"compress": compress_job, "export": export_job}
