"""Write dashboard.json for Grafana from one list of panels: each model is a line of its own.

python serving/monitoring/dashboard.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("dashboard.json")
SOURCE = {"type": "prometheus", "uid": "${source}"}
MODEL, CHOSEN = "{{model_name}}", 'model_name=~"$model"'
WIDTH, HEIGHT, COLUMNS = 8, 8, 3  # in Grafana's grid of 24 columns


def rate(counter: str, labels: str = CHOSEN, by: str = "model_name") -> str:
    """What a counter grows by in a second."""
    return f"sum by ({by}) (rate({counter}{{{labels}}}[$__rate_interval]))"


def quantiles(histogram: str) -> dict[str, str]:
    """Median and 95th percentile of a histogram, for each model."""
    grown = rate(f"{histogram}_bucket", by="le, model_name")
    shares = {"p50": 0.5, "p95": 0.95}
    return {f"{MODEL} {n}": f"histogram_quantile({p}, {grown})" for n, p in shares.items()}


def gauge(name: str, over_servers: str = "sum") -> str:
    """A gauge of each model's servers."""
    return f"{over_servers} by (model_name) ({name}{{{CHOSEN}}})"


HITS, ASKED = (rate(f"vllm:prefix_cache_{name}_total") for name in ("hits", "queries"))
ANSWERS = rate("http_requests_total", 'job="vllm"', "instance")
FAILED = rate("http_requests_total", 'job="vllm",status="5xx"', "instance")
REQUESTS = {
    f"{MODEL} {state}": gauge(f"vllm:num_requests_{state}") for state in ("running", "waiting")
}
# Title, Grafana's name of the unit, and queries by the legend of their lines.
PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Time to the first token", "s", quantiles("vllm:time_to_first_token_seconds")),
    ("Time per output token", "s", quantiles("vllm:request_time_per_output_token_seconds")),
    ("Time in the queue", "s", quantiles("vllm:request_queue_time_seconds")),
    ("Requests finished", "reqps", {MODEL: rate("vllm:request_success_total")}),
    ("Tokens written", "suffix: tokens/s", {MODEL: rate("vllm:generation_tokens_total")}),
    ("Tokens read", "suffix: tokens/s", {MODEL: rate("vllm:prompt_tokens_total")}),
    ("Requests", "short", REQUESTS),
    ("KV cache in use", "percentunit", {MODEL: gauge("vllm:kv_cache_usage_perc", "max")}),
    ("Requests put back in the queue", "reqps", {MODEL: rate("vllm:num_preemptions_total")}),
    ("Prompt tokens found in the cache", "percentunit", {MODEL: f"{HITS} / {ASKED}"}),
    ("Answers 5xx", "percentunit", {"{{instance}}": f"({FAILED} or 0 * {ANSWERS}) / {ANSWERS}"}),
    ("Servers that answer", "short", {"{{instance}}": 'up{job="vllm"}'}),
)


def graph(number: int, title: str, unit: str, queries: dict[str, str]) -> dict[str, Any]:
    """A panel as Grafana wants it."""
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": "AB"[index], "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(queries.items())
        ],
    }


def text() -> str:
    """The file's content. Which Prometheus and which models is chosen at the dashboard's top."""
    models = "label_values(vllm:num_requests_running, model_name)"
    chosen = {"name": "model", "type": "query", "datasource": SOURCE, "refresh": 2}
    chosen |= {"query": {"query": models, "refId": "A"}, "multi": True, "includeAll": True}
    chosen["current"] = {"text": "All", "value": "$__all"}
    source = {"name": "source", "type": "datasource", "query": "prometheus"}
    dashboard = {
        "uid": "grasp-deploy",
        "title": "vLLM: dense beside pruned",
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, chosen]},
        "panels": [graph(number, *panel) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(dashboard, indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
