"""A Ray cluster for the length of a `with` block, with serving/ray/app.py on it."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from grasp_deploy.engine.child import log_tail, running
from grasp_deploy.engine.serve import HOST, free_port
from grasp_deploy.errors import ChildError, InputError

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
# Engines so small that several of them share two cores.
ENGINE = {"max_model_len": 512, "enforce_eager": True, "kv_cache_memory_bytes": 2**27}
LOOK_SECONDS = 1.0
START_SECONDS = 600.0
COUNTER = re.compile(r'serve_deployment_request_counter_total{.*replica="(\w+)".*} ([\d.]+)')
Deployments = dict[str, dict[str, Any]]  # by name: what the dashboard says of it


@dataclass(frozen=True)
class Cluster:
    """Where a running cluster listens, and the folder that holds its token and logs."""

    folder: Path
    environment: dict[str, str]
    port: int = field(default_factory=free_port)
    dashboard_port: int = field(default_factory=free_port)
    metrics_port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        """Base URL of the app."""
        return f"http://{HOST}:{self.port}"

    def deploy(self, arguments: dict[str, Any], deployments: Deployments | None = None) -> None:
        """Hand Serve the app with these arguments, and options of its deployments by name."""
        app: dict[str, Any] = {"name": "grasp", "import_path": "serving.ray.app:build"}
        app["args"] = arguments
        app["deployments"] = [{"name": n, **given} for n, given in (deployments or {}).items()]
        http = {"host": HOST, "port": self.port}
        file = self.folder / "config.yaml"
        file.write_text(yaml.safe_dump({"http_options": http, "applications": [app]}))
        address = f"http://{HOST}:{self.dashboard_port}"
        command = [str(TOOLS / "serve"), "deploy", "-a", address, str(file)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise ChildError(f"`serve deploy` failed: {done.stderr}")

    def deployments(self) -> Deployments:
        """What the dashboard says of each deployment; OSError until it listens."""
        token = (self.folder / "token").read_text()
        url = f"http://{HOST}:{self.dashboard_port}/api/serve/applications/"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30) as response:
            app = json.load(response)["applications"].get("grasp", {})
        if app.get("status") == "DEPLOY_FAILED":
            raise ChildError(f"Ray Serve could not deploy the app: {app['message']}")
        found: Deployments = app.get("deployments", {})
        return found

    def wait(self, is_done: Callable[[Deployments], bool]) -> Deployments:
        """Look at the deployments until something holds for them; ChildError after ten minutes."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError):
                if is_done(found := self.deployments()):
                    return found
            time.sleep(LOOK_SECONDS)
        log = log_tail(self.folder / "log")
        raise ChildError(f"Ray Serve took over {START_SECONDS:g} s; Ray's log ends:\n{log}")

    def wait_for_all(self) -> None:
        """Look until every deployment of the app has a replica that answers."""
        self.wait(lambda seen: bool(seen) and all(running_replicas(seen, name) for name in seen))

    def requests_by_replica(self) -> Counter[str]:
        """Requests that each replica has answered, at most some seconds ago."""
        url = f"http://{HOST}:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            rows = COUNTER.findall(response.read().decode())
        counts: Counter[str] = Counter()
        for replica, count in rows:
            counts[replica] += int(float(count))
        return counts


def running_replicas(deployments: Deployments, name: str) -> dict[str, int]:
    """The replicas of a deployment that answer, with the id of their process."""
    replicas = deployments.get(name, {}).get("replicas", [])
    return {row["replica_id"]: row["pid"] for row in replicas if row["state"] == "RUNNING"}


def check_ray() -> None:
    """InputError if Ray Serve is not installed beside this Python."""
    if not (TOOLS / "serve").exists():
        raise InputError('Ray Serve is not installed: pip install "ray[serve]>=2.60,<3"')


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Start Ray with a token and 32 logical CPUs; all its processes and files go in the end."""
    check_ray()
    # In /tmp, since paths of sockets must be short.
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as name:
        cluster = Cluster(Path(name), _environment(Path(name)))
        (cluster.folder / "token").write_text(secrets.token_hex(32))
        command = [str(TOOLS / "ray"), "start", "--head", "--block", f"--temp-dir={name}"]
        command += [f"--port={free_port()}", f"--dashboard-port={cluster.dashboard_port}"]
        command += [f"--ray-client-server-port={free_port()}", "--num-cpus=32"]
        command += [f"--metrics-export-port={cluster.metrics_port}"]
        command += ["--object-store-memory=100000000"]
        with running(command, cluster.environment, cluster.folder / "log", grace_seconds=60):
            cluster.wait(lambda _: True)
            yield cluster


def _environment(folder: Path) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
