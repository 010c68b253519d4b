"""A real Prometheus watches a real server: every query of rules and dashboard has an answer."""

import json
import math
import os
import re
import shutil
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from grasp_deploy.engine.child import running
from grasp_deploy.engine.serve import free_port, running_server
from tests.cli.command import needs_vllm
from tests.serving.test_kubernetes import KUBERNETES
from tests.serving.test_recipes import PROMPTS, complete

MONITORING = KUBERNETES.parent / "monitoring"
GROUPS = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
PANELS = json.loads((MONITORING / "dashboard.json").read_text())["panels"]


def ask(prometheus: str, path: str, **values: str) -> Any:
    url = f"{prometheus}/api/v1/{path}?{urlencode(values)}"
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)["data"]


def unanswered(prometheus: str, queries: list[str]) -> list[str]:
    """Those queries that give no line, or one that is not a number."""

    def answered(query: str) -> bool:
        lines = ask(prometheus, "query", query=query)["result"]
        return bool(lines) and all(math.isfinite(float(line["value"][1])) for line in lines)

    return [query for query in queries if not answered(query)]


def firing(prometheus: str) -> set[str]:
    return {row["labels"]["alertname"] for row in ask(prometheus, "alerts")["alerts"]}


def wait_for(happened: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(1)


def live_queries() -> list[str]:
    """Every query of rules, dashboard and adapter, so that it has an answer on a sound server."""
    adapter = yaml.safe_load((KUBERNETES / "prometheus-adapter-values.yaml").read_text())
    query = adapter["rules"]["custom"][0]["metricsQuery"]
    values = {"Series": "vllm:num_requests_waiting", "LabelMatchers": 'pod=~"p"', "GroupBy": "pod"}
    for name, value in values.items():
        query = query.replace(f"<<.{name}>>", value)
    recorded = [rule["record"] for rule in RULES if "record" in rule]
    alerts = [rule["expr"] for rule in RULES if "alert" in rule]
    compared = [re.sub(r" (>|==) (\S+)$", r" \1 bool \2", expr) for expr in alerts]
    shown = [target["expr"] for panel in PANELS for target in panel["targets"]]
    drawn = [text.replace("$__rate_interval", "1m").replace("$model", ".*") for text in shown]
    blocks = 'vllm:cache_config_info{num_gpu_blocks=~"[0-9]+"}'  # as the README says
    return [query, blocks, *recorded, *compared, *drawn]


def write_config(folder: Path, port: int) -> None:
    """The committed config and rules, for one server and in seconds instead of minutes."""
    config = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    target = {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": "n", "pod": "p"}}
    config["scrape_configs"][0]["static_configs"] = [target]
    (folder / "prometheus.yaml").write_text(json.dumps(config))
    rules = (MONITORING / "rules.yaml").read_text()
    (folder / "rules.yaml").write_text(re.sub(r"for: \d+m", "for: 0s", rules))


@pytest.mark.all
@pytest.mark.vllm
@needs_vllm
@pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="prometheus is not installed (Debian: apt-get install prometheus)",
)
def test_prometheus_watches_a_server_live_and_die(demo_checkpoint: Path, tmp_path: Path) -> None:
    port, own = free_port(), free_port()
    write_config(tmp_path, port)
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yaml"]
    command += [f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{own}"]
    flags = ["--max-model-len", "512", "--enforce-eager", "--served-model-name", "pruned"]
    flags += ["--port", str(port)]
    prometheus, queries = f"http://127.0.0.1:{own}", live_queries()
    with running(command, os.environ, tmp_path / "prometheus.log"):
        with running_server(demo_checkpoint, flags, tmp_path / "server.log") as url:

            def answered_after_load() -> bool:
                with ThreadPoolExecutor(4) as pool:
                    list(pool.map(lambda prompt: complete(url, prompt, "pruned"), PROMPTS))
                return not unanswered(prometheus, queries)

            wait_for(answered_after_load, seconds=60)
            assert unanswered(prometheus, queries) == []
            assert firing(prometheus) == set()
        dead = {"VllmServerDown", "VllmNoServer"}
        wait_for(lambda: dead <= firing(prometheus), seconds=60)
        assert dead <= firing(prometheus)
