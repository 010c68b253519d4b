"""`bench serve`: every model under the same loads, from vLLM's own load generator."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.bench import serve
from grasp_deploy.bench.serve import (
    LoadPoint,
    Percentiles,
    ServeSettings,
    bench_serve,
    bench_serve_environment,
    load_arguments,
)
from grasp_deploy.bench.serve_child import sample_of
from grasp_deploy.engine import serve as server
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import bench_models
from tests.installed import pretend
from tests.tiny import save_tiny

GIB = 2**30
SHORT: dict[str, Any] = {"requests": 5, "prompt_tokens": 64, "new_tokens": 8}
REQUESTS = ServeSettings(
    requests=20, prompt_tokens=64, new_tokens=16, slo_ttft_ms=200.0, slo_tpot_ms=12.5
)


def result() -> dict[str, Any]:
    """What vLLM's load generator returns, in milliseconds."""
    figures: dict[str, Any] = {
        **{"failed": 2, "output_throughput": 72.0, "request_goodput": None},
        "errors": ["", "Bad Request", "", "Bad Request", "gone"],
    }
    for number, metric in enumerate(("ttft", "tpot", "e2el"), start=1):
        for name, ms in (("mean", 10.0), ("p50", 9.0), ("p90", 20.0), ("p99", 40.0)):
            figures[f"{name}_{metric}_ms"] = ms * number
    return figures


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("dense", "pruned"):
        save_tiny("llama", folder / name)
    return [folder / "dense", folder / "pruned"]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What servers and the load generator were asked for, with neither of them there."""
    events: list[tuple[str, Any]] = []

    @contextmanager
    def running_server(path: Path, flags: Sequence[str], *_: object) -> Iterator[str]:
        events.append(("start", (path.name, list(flags))))
        yield f"http://{path.name}"
        events.append(("stop", path.name))

    @contextmanager
    def child(*_: object, **__: object) -> Iterator[Any]:
        def ask(request: dict[str, list[str]]) -> dict[str, Any]:
            asked = request["arguments"]
            values = {flag: asked[asked.index(flag) + 1] for flag in ("--base-url", "--seed")}
            events.append(("load", values))
            return sample_of(result())

        yield ask

    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    monkeypatch.setattr(server, "memory_bytes", lambda free: 64 * GIB)
    monkeypatch.setattr(server, "running_server", running_server)
    monkeypatch.setattr(serve, "child", child)
    return events


def test_every_server_gets_the_same_loads_and_rounds_alternate(
    models: list[Path], events: list[tuple[str, Any]]
) -> None:
    seen: list[dict[str, Any]] = []
    settings = ServeSettings((1,), (0.5,), repetitions=2, seed=7, **SHORT)
    chosen = bench_models([str(path) for path in models])
    told: list[str] = []

    def told_of(record: serve.ServeRecord) -> None:
        names = [model.name for model in record.models]
        told.append(f"{','.join(names)}: {[len(cell.samples) for cell in record.cells]}")

    given = ["--max-model-len", "512"]
    record = bench_serve(chosen, settings, given, ["bench"], seen.append, told_of)
    assert told == ["dense: [1, 1]", "dense,pruned: [1, 1, 1, 1]", "dense,pruned: [2, 2, 2, 2]"]

    turns = [what[0] for event, what in events if event == "start"]
    assert turns == ["dense", "pruned", "pruned", "dense"]
    kinds = [event for event, _ in events]
    assert kinds == ["start", "load", "load", "stop"] * 4, "one server at a time"
    flags = [what[1] for event, what in events if event == "start"]
    assert all(one == flags[0] for one in flags)
    assert flags[0] == [
        *("--no-enable-prefix-caching", "--kv-cache-memory-bytes", str(4 * GIB)),
        *("--max-model-len", "512"),
    ]
    assert list(record.settings.server_flags) == flags[0]

    both = [LoadPoint(1, None), LoadPoint(None, 0.5)]
    points = [(cell.model, cell.load) for cell in record.cells]
    assert points == [(name, load) for name in ("dense", "pruned") for load in both]
    assert all(cell.requests == 5 and len(cell.samples) == 2 for cell in record.cells)
    loads = [(what["--base-url"][7:], what["--seed"]) for event, what in events if event == "load"]
    assert loads == [  # the same requests for both models, others in each repetition
        *(("dense", "7"), ("dense", "8"), ("pruned", "7"), ("pruned", "8")),
        *(("pruned", "9"), ("pruned", "10"), ("dense", "9"), ("dense", "10")),
    ]
    sample = record.cells[0].samples[0]
    assert sample.ttft_seconds == Percentiles(mean=0.01, p50=0.009, p90=0.02, p99=0.04)
    assert sample.e2e_seconds == Percentiles(mean=0.03, p50=0.027, p90=0.06, p99=0.12)
    assert (sample.failed, sample.output_tokens_per_second) == (2, 72.0)
    assert sample.errors == ["Bad Request", "gone"]
    assert [row["step"] for row in seen] == list(range(9)) and seen[-1]["steps"] == 8


def test_all_is_checked_before_the_first_server(
    models: list[Path], tmp_path: Path, events: list[tuple[str, Any]]
) -> None:
    save_tiny("llama", tmp_path / "odd", head_dim=8)
    chosen = bench_models([str(models[0]), str(tmp_path / "odd")])
    for most, words in ((5, "the model's heads are 8 wide"), (6, "6 is more than the 5 requests")):
        with pytest.raises(InputError, match=words):
            bench_serve(chosen, ServeSettings((1, most), **SHORT), [], ["bench"])
    assert events == []


def test_a_port_in_use_matters_only_if_a_flag_names_it(
    models: list[Path], events: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = bench_models([str(models[0])])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(server, "PORT", port)
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 is in use"):
            bench_serve(chosen, ServeSettings((1,), **SHORT), ["--port", str(port)], ["bench"])
        record = bench_serve(chosen, ServeSettings((1,), **SHORT), [], ["bench"])
    assert "--port" not in record.settings.server_flags


def test_no_secret_comes_into_a_record(models: list[Path], events: list[tuple[str, Any]]) -> None:
    chosen = bench_models([str(models[0])])
    for flags in (
        *(["--hf-token", "secret"], ["--hf_token=secret"], ["--api-key", "secret"]),
        *(["--watermark-config", "secret"], ["--watermark_config.key=secret"]),
    ):
        with pytest.raises(InputError, match="would stand in the record") as refused:
            bench_serve(chosen, ServeSettings((1,), **SHORT), flags, ["bench"])
        assert "secret" not in str(refused.value)
    assert events == []


def test_the_arguments_of_a_load() -> None:
    url, folder = "http://127.0.0.1:1234", Path("model")
    arguments = load_arguments(LoadPoint(8, None), REQUESTS, 3, url, folder)
    values = {
        **{"--base-url": url, "--tokenizer-mode": "hf"},
        **{"--max-concurrency": "8", "--num-prompts": "20", "--seed": "3"},
        **{"--random-input-len": "64", "--random-output-len": "16", "--random-range-ratio": "0"},
        **{"--percentile-metrics": "ttft,tpot,e2el", "--metric-percentiles": "50,90,99"},
    }
    assert {flag: arguments[arguments.index(flag) + 1] for flag in values} == values
    assert "--tokenizer=model" in arguments  # a folder may be named -x
    assert "--ignore-eos" in arguments and "--request-rate" not in arguments
    assert arguments[arguments.index("--goodput") + 1 :] == ["ttft:200", "tpot:12.5"]
    plain = replace(REQUESTS, slo_ttft_ms=None, slo_tpot_ms=None)
    arguments = load_arguments(LoadPoint(None, 0.5), plain, 3, url, folder)
    assert arguments[arguments.index("--request-rate") + 1] == "0.5"
    assert "--max-concurrency" not in arguments and "--goodput" not in arguments


def test_no_proxy_stands_between_the_load_and_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.setenv("NO_PROXY", "example.net")
    environment = bench_serve_environment()
    both = "example.org,example.net,127.0.0.1,localhost,::1"
    assert environment["NO_PROXY"] == environment["no_proxy"] == both
