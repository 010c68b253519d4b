"""The server's own command, under the constraints of its pod: on a CPU, in namespaces of Linux."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grasp_deploy.engine.serve import DRAIN_SECONDS, EXIT_SECONDS
from tests.cli.command import REPOSITORY, needs_vllm
from tests.serving.test_kubernetes import PODS, serve_flags

HERE = Path(__file__).parent
ISOLATED = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
TOOLS = ("unshare", "setpriv", "ip", "chroot")


def can_isolate() -> bool:
    """True where this user may make namespaces and has the tools."""
    if os.geteuid() or not all(map(shutil.which, TOOLS)):
        return False
    return subprocess.run([*ISOLATED, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.all
@pytest.mark.vllm
@needs_vllm
@pytest.mark.skipif(not can_isolate(), reason="namespaces need root, util-linux and iproute2")
def test_the_server_needs_no_more_than_its_pod_gives(demo_checkpoint: Path, tmp_path: Path) -> None:
    (container,) = PODS["server"]["spec"]["containers"]
    given = {"HOME": "/home/grasp", "USER": "grasp", "PATH": os.environ["PATH"]}  # the image's
    given |= {row["name"]: row["value"] for row in container["env"] if "value" in row}
    probe = f"http://127.0.0.1:8000{container['startupProbe']['httpGet']['path']}"
    server = [sys.executable, "-m", "grasp_deploy", "serve", "/model", "--"]
    server += [*serve_flags(PODS["server"]), "--max-model-len=512"]
    visible = {str(Path(path).resolve()) for path in (sys.base_prefix, sys.prefix, REPOSITORY)}
    command = [*ISOLATED, HERE / "pod.sh", tmp_path, demo_checkpoint, *sorted(visible), "--"]
    command += [sys.executable, HERE / "ask_pod.py", probe, "m", *server]
    given["PYTHONPATH"] = str(REPOSITORY)
    done = subprocess.run(
        list(map(str, command)), env=given, capture_output=True, text=True, timeout=590, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert seen["tokens"] == 8 and seen["end_seconds"] < DRAIN_SECONDS + EXIT_SECONDS
    assert seen["writable"] == ["/home/grasp", "/tmp"]
