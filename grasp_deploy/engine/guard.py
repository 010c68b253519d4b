"""Run vLLM's server as all that `serve` is: tell it to end, and cut what does not.

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
    """Run a command until it ends or SIGTERM or SIGINT comes; returns a shell's exit status.

    A second signal kills it at once.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    process = None
    with (
        suppress(KeyboardInterrupt),
        running(command, os.environ, grace_seconds=grace_seconds) as process,
    ):
        process.wait()
    status = process.wait() if process else -signal.SIGTERM
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(guard(sys.argv[2:], float(sys.argv[1])))
