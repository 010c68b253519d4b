"""Start a server, wait for its probe, ask it once, end it, and print what was seen as JSON.

Arguments: the probe's URL, the model's name, and the server's command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress

START_SECONDS = 400


def main(probe: str, model: str, command: list[str]) -> None:
    """Do all of it; the server's log goes to standard error."""
    with subprocess.Popen(command, stdout=sys.stderr) as server:
        deadline = time.monotonic() + START_SECONDS
        while server.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(probe, timeout=5):
                break
            time.sleep(0.5)
        body = {"model": model, "prompt": "Return a list of", "max_tokens": 8}
        url = probe.rpartition("/")[0] + "/v1/completions"
        request = urllib.request.Request(url, json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as response:
            tokens = json.load(response)["usage"]["completion_tokens"]
        begun = time.monotonic()
        server.terminate()
        server.wait(timeout=60)
    end_seconds = time.monotonic() - begun
    writable = [path for path in ("/", "/model", "/home/grasp", "/tmp") if os.access(path, os.W_OK)]
    print(json.dumps({"tokens": tokens, "end_seconds": end_seconds, "writable": writable}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
