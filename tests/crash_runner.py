"""Kill commands at a given file operation: a warm process forks them, so imports are paid once.

A fork counts what it does to files below one folder (opens, renames, removals) and kills itself
before the operation with a given number. So a kill hits the same place on any machine.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any, NamedTuple

from grasp_deploy.engine.child import Ask, answer_requests, child
from tests.cli.command import environment

OPERATIONS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"})


class Outcome(NamedTuple):
    """The end of a fork: whether it was killed, else how many operations it took in all."""

    killed: bool
    operations: int


@dataclass(frozen=True)
class Forker:
    """The near end of a warm process."""

    ask: Ask

    def run(self, job: str, folder: Path, kill_at: int | None = None, **arguments: Any) -> Outcome:
        """Run a job in a fork, killed before its operation number `kill_at` below `folder`."""
        request = {"job": job, "folder": str(folder), "kill_at": kill_at, "arguments": arguments}
        return Outcome(**self.ask(request))


@contextmanager
def forker() -> Iterator[Forker]:
    """A warm process for the length of a `with` block."""
    with child("tests.crash_runner", environment(), name="the warm process") as ask:
        yield Forker(ask)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The far end: do a job in a fork; RuntimeError if it ends by itself and badly."""
    operations, process = RawValue("i", 0), os.fork()
    if process == 0:
        _work(request, operations)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the job failed with exit status {status}")
    return {"killed": status != 0, "operations": operations.value}


def _work(request: dict[str, Any], operations: Any) -> None:
    """In the fork: do the job, count its operations, and leave without the parent's clean-up."""

    def count(event: str, arguments: tuple[object, ...]) -> None:
        if event in OPERATIONS and request["folder"] in str(arguments[0]):
            operations.value += 1
            if operations.value == request["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        sys.addaudithook(count)
        JOBS[request["job"]](**request["arguments"])
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

if __name__ == "__main__":
    import transformers.models.llama.modeling_llama  # noqa: F401  (for the jobs)

    import grasp_deploy.compression.compress  # noqa: F401

    answer_requests(answer)
