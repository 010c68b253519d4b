"""Rules and dashboard ask for what vLLM reports, and the alerts fire on their faults alone."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from grasp_deploy.engine.child import running
from grasp_deploy.engine.serve import free_port, running_server
from serving.monitoring import dashboard
from tests.cli.command import needs_vllm
from tests.serving.test_kubernetes import KUBERNETES, ROOT
from tests.serving.test_recipes import PROMPTS, complete

MONITORING = KUBERNETES.parent / "monitoring"
README = (MONITORING / "README.md").read_text()
GROUPS = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule["expr"] for rule in RULES if "alert" in rule}
DRAWN = [query for *_, queries in dashboard.PANELS for query in queries.values()]
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("promtool") and shutil.which("prometheus")),
    reason="prometheus is not installed (Debian: apt-get install prometheus)",
)


def reported() -> Iterator[str]:
    """Every series that the installed vLLM makes, read from its source."""
    spec = find_spec("vllm")
    assert spec and spec.origin
    source = Path(spec.origin).with_name("v1") / "metrics" / "loggers.py"
    ends = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    found = re.findall(r'_(\w+)_cls\(\s*name="(vllm:\w+)"', source.read_text())
    yield from (name + end for kind, name in found for end in ends[kind])


@needs_vllm
def test_vllm_reports_every_series_that_is_asked_for() -> None:
    asked = set(re.findall(r"\bvllm:\w+", " ".join([*(rule["expr"] for rule in RULES), *DRAWN])))
    assert len(asked) >= 10
    assert asked <= set(reported())


def test_recorded_series_are_those_that_alerts_ask_for() -> None:
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    assert recorded == set(re.findall(r"\b(?:model|instance):\w+:\w+", " ".join(ALERTS.values())))


def test_the_dashboard_is_what_its_script_writes(tmp_path: Path) -> None:
    (script,) = re.findall(r"^python (.+)$", README, flags=re.MULTILINE)
    copy = shutil.copy(ROOT / script, tmp_path)
    subprocess.run([sys.executable, copy], check=True)
    assert (tmp_path / dashboard.PATH.name).read_text() == dashboard.PATH.read_text()


def test_the_readme_names_every_alert() -> None:
    assert re.findall(r"^\| `(\w+)`", README, flags=re.MULTILINE) == list(ALERTS)


def histogram(name: str, seconds: float) -> dict[str, str]:
    """Ten requests a minute that took so long, as promtool's series."""
    bounds = {"0.1": seconds <= 0.1, "100": True, "+Inf": True}
    series = f'vllm:{name}_seconds_bucket{{model_name="m",le="%s"}}'
    return {series % bound: "0+10x30" if within else "0x30" for bound, within in bounds.items()}


def traffic(status: str, growth: int) -> dict[str, str]:
    return {f'http_requests_total{{job="vllm",instance="a",status="{status}"}}': f"0+{growth}x30"}


UP = 'up{job="vllm",instance="%s"}'
HEALTHY = {
    **{UP % "a": "1x30", UP % "b": "1x30", 'vllm:kv_cache_usage_perc{model_name="m"}': "0.5x30"},
    **traffic("2xx", 100),
    **histogram("request_queue_time", 0.1),
    **histogram("time_to_first_token", 0.1),
    **histogram("request_time_per_output_token", 0.1),
}
FAULTS: dict[str, dict[str, str]] = {
    "": {},
    "VllmServerDown": {UP % "b": "0x30"},
    "VllmNoServer": {UP % "a": "_x30", UP % "b": "_x30"},
    "VllmErrors": traffic("5xx", 5),
    "VllmQueueLong": histogram("request_queue_time", 50),
    "VllmCacheFull": {'vllm:kv_cache_usage_perc{model_name="m"}': "0.99x30"},
    "VllmFirstTokenSlow": histogram("time_to_first_token", 50),
    "VllmTokensSlow": histogram("request_time_per_output_token", 50),
}


@needs_prometheus
def test_each_alert_fires_on_its_fault_alone(tmp_path: Path) -> None:
    assert [name for name in FAULTS if name] == list(ALERTS)
    tests = []
    for name, fault in FAULTS.items():
        firing = {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "25m"}
        series = [{"series": key, "values": value} for key, value in (HEALTHY | fault).items()]
        expected = [{"labels": f'{{alertname="{name}"}}', "value": 1}] if name else []
        tests.append({"interval": "1m", "input_series": series})
        tests[-1]["promql_expr_test"] = [firing | {"exp_samples": expected}]
    document = {"rule_files": [str(MONITORING / "rules.yaml")], "tests": tests}
    (tmp_path / "test.yaml").write_text(json.dumps(document))
    (check,) = re.findall(r"^promtool .*$", README, flags=re.MULTILINE)
    for command in (check, f"promtool test rules {tmp_path / 'test.yaml'}"):
        done = subprocess.run(
            command.split(), cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


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
    compared = [re.sub(r" (>|==) (\S+)$", r" \1 bool \2", expr) for expr in ALERTS.values()]
    drawn = [text.replace("$__rate_interval", "1m").replace("$model", ".*") for text in DRAWN]
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
@needs_prometheus
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
