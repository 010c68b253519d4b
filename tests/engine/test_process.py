"""Starting and ending processes of our own."""

import os
import sys
import time
from pathlib import Path

from grasp_deploy.engine.process import log_tail, start, stop


def test_output_and_errors_go_to_the_log(tmp_path: Path) -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); print(input())"
    process = start([sys.executable, "-c", code], dict(os.environ), tmp_path / "log")
    process.communicate(b"in\n", timeout=30)
    assert log_tail(tmp_path / "log").split() == ["out", "err", "in"]
    assert log_tail(tmp_path / "log", lines=2).split() == ["err", "in"]


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and waits for its parent does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_stopping_takes_the_whole_group_even_those_that_ignore_it(tmp_path: Path) -> None:
    child = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    code = (
        f"import subprocess, sys; {child.partition(';')[0]}; signal.signal(15, signal.SIG_IGN)\n"
        f"children = [subprocess.Popen([sys.executable, '-c', {child!r}]) for _ in range(2)]\n"
        "print(*(child.pid for child in children), flush=True)\n"
        "time.sleep(600)"
    )
    process = start([sys.executable, "-c", code], dict(os.environ), tmp_path / "log")
    deadline = time.monotonic() + 30
    while not log_tail(tmp_path / "log") and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [process.pid, *map(int, log_tail(tmp_path / "log").split())]
    assert len(pids) == 3 and all(map(alive, pids))
    stop(process, grace_seconds=0.3)
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))
    stop(process)  # once more does no harm
