"""Processes seen from outside: which there are below one, and whether they still run."""

import time
from collections.abc import Callable, Collection
from pathlib import Path

# A program whose child ignores SIGTERM as it does itself, but says that it was told.
DEAF_FAMILY = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
print("ready", flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    """True if a process runs; one that is dead and waits for its parent does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> dict[int, str]:
    """The command lines of all processes below one."""
    found: dict[int, str] = {}
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        for child in map(int, (thread / "children").read_text().split()):
            command = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
            found |= {child: command, **descendants(child)}
    return found


def wait_until(done: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def assert_gone(pids: Collection[int]) -> None:
    """Assert that in ten seconds none of these processes runs."""
    wait_until(lambda: not any(map(alive, pids)), seconds=10.0)
