"""Ray Serve: a real cluster answers as vLLM does, and splits."""

import importlib.util
import json
import os
import runpy
import secrets
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest

from grasp_deploy.engine.child import log_tail, running
from grasp_deploy.engine.serve import HOST, free_port, running_server
from grasp_deploy.errors import InputError
from tests.cli.command import needs_vllm
from tests.installed import pretend
from tests.serving.test_kubernetes import ROOT
from tests.serving.test_recipes import PROMPTS, complete
from tests.tiny import save_tiny

TOOLS = Path(sys.executable).parent
# Engines so small that two of them share two cores.
ENGINE = {"max_model_len": 512, "enforce_eager": True, "kv_cache_memory_bytes": 2**27}
START_SECONDS = 600.0


@contextmanager
def ray_app(folders: dict[str, Path]) -> Iterator[str]:
    """Base URL of the app on a Ray cluster of its own, with a token of its own."""
    # In /tmp, since paths of sockets must be short.
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, port, dashboard_port = Path(name), free_port(), free_port()
        token = secrets.token_hex(32)
        (folder / "token").write_text(token)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        arguments = {name: str(path) for name, path in folders.items()} | {"engine": ENGINE}
        app = {"name": "grasp", "import_path": "serving.ray.app:build", "args": arguments}
        config = {"http_options": {"host": HOST, "port": port}, "applications": [app]}
        (folder / "config.yaml").write_text(json.dumps(config))
        address = f"http://{HOST}:{dashboard_port}"
        start = [str(TOOLS / "ray"), "start", "--head", "--block", f"--temp-dir={name}"]
        start += [f"--port={free_port()}", f"--dashboard-port={dashboard_port}", "--num-cpus=32"]
        start += [f"--ray-client-server-port={free_port()}", "--object-store-memory=100000000"]
        deploy = [str(TOOLS / "serve"), "deploy", "-a", address, str(folder / "config.yaml")]

        def is_up() -> bool:
            """True once every deployment has a replica that answers; OSError until Ray listens."""
            url = f"{address}/api/serve/applications/"
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=30) as response:
                found = json.load(response)["applications"].get("grasp", {})
            assert found.get("status") != "DEPLOY_FAILED", found["message"]
            replicas = [row["replicas"] for row in found.get("deployments", {}).values()]
            up = [any(one["state"] == "RUNNING" for one in rows) for rows in replicas]
            return bool(up) and all(up)

        def wait(for_app: bool) -> None:
            deadline = time.monotonic() + START_SECONDS
            while time.monotonic() < deadline:
                with suppress(OSError):
                    if is_up() or not for_app:
                        return
                time.sleep(1)
            raise AssertionError(f"Ray Serve did not start: {log_tail(folder / 'log')}")

        with running(start, environment, folder / "log", grace_seconds=60):
            wait(for_app=False)
            subprocess.run(deploy, env=environment, check=True)
            wait(for_app=True)
            yield f"http://{HOST}:{port}"


@pytest.mark.all
@pytest.mark.vllm
@needs_vllm
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install .[ray]"
)
def test_ray_answers_as_vllm_does_and_splits_and_streams(
    demo_model: Path, demo_checkpoint: Path, tmp_path: Path
) -> None:
    folders, expected = {"dense": demo_model, "pruned": demo_checkpoint}, {}
    own = ["--max-model-len", "512", "--enforce-eager", "--kv-cache-memory-bytes", str(2**27)]
    for name, folder in folders.items():
        with running_server(folder, own, tmp_path / name) as url:
            expected[name] = [complete(url, prompt, str(folder)) for prompt in PROMPTS]
    with ray_app(folders) as url:
        for name in folders:
            assert [complete(url, prompt, name) for prompt in PROMPTS] == expected[name]
        seen = Counter(post(url, stream=False)[0]["model"] for _ in range(100))
        assert seen.keys() == {"dense", "pruned"}
        assert 25 <= seen["pruned"] <= 75, "a share of 0.5: outside in one of a million runs"
        chunks = post(url, stream=True)
    assert len(chunks) > 1
    assert len({chunk["model"] for chunk in chunks}) == 1 and chunks[0]["model"] in seen


def test_the_app_checks_a_folder_as_serve_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing of Ray but names."""
    pytest.importorskip("fastapi")
    for name in ("", ".serve", ".serve.llm", ".serve.llm.ingress", ".serve.llm.openai_api_models"):
        module: Any = ModuleType(f"ray{name}")
        module.__getattr__ = lambda _: dict
        monkeypatch.setitem(sys.modules, f"ray{name}", module)
    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    app = runpy.run_path(str(ROOT / "serving" / "ray" / "app.py"))

    def made(**engine: Any) -> Any:
        settings = app["Settings"](dense=tmp_path, pruned=tmp_path, engine=engine)
        return app["model_config"]("dense", tmp_path, settings)

    save_tiny("llama", tmp_path)
    monkeypatch.setattr("grasp_deploy.engine.serve.memory_bytes", lambda free: 16 * 2**30)
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    own = made(enforce_eager=False, seed=None)["engine_kwargs"]
    assert (own["dtype"], own["load_format"]) == ("float32", "safetensors")
    assert own["kv_cache_memory_bytes"] == 2 * 2**30, "a quarter, shared by two replicas"
    own = made(quantization="fp8", kv_cache_memory_bytes=9, tokenizer="T")["engine_kwargs"]
    assert not own.keys() & {"dtype", "tokenizer_mode"} and own["kv_cache_memory_bytes"] == 9
    for engine, culprit in (
        ({"pipeline_parallel_size": 4}, "4 pipeline stages"),
        ({"pipeline_parallel_size": 2, "enforce_eager": True}, "compiled"),
        ({"tensor_parallel_size": 3}, "tensor-parallel size 3"),
        ({"max_model_len": 600}, "512 positions"),
        ({"enable_expert_parallel": True}, "no experts"),
    ):
        with pytest.raises(InputError, match=culprit):
            made(**engine)
    save_tiny("llama", tmp_path, head_dim=16)
    with pytest.raises(InputError, match="heads are 16 wide"):
        made()


def post(url: str, stream: bool) -> list[dict[str, Any]]:
    """The documents that a request for the common model name is answered with."""
    body = {"model": "model", "prompt": "import", "max_tokens": 8, "stream": stream}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as response:
        lines = [line.removeprefix("data: ") for line in response.read().decode().splitlines()]
    return [json.loads(line) for line in lines if line and line != "[DONE]"]
