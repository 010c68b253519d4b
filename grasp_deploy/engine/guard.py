"""Run vLLM's server as all that `serve` is: pass on the wish to end it, and cut what goes on.

vLLM kills its engine when the time to drain is over. Then it waits, without a limit, for clients
whose answers cannot go on. So it gets some seconds more, and is killed with all its processes.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from grasp_deploy.engine.child import running


def guard(command: list[str], grace_seconds: float) -> int:
    """Run a command until it ends, or until SIGTERM or SIGINT; returns its exit status for a shell.

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
