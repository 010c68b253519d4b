"""Ray Serve: the manifest agrees with the app and the image, and a real cluster splits."""

from __future__ import annotations

import importlib.util
import json
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.common.ray_cluster import ENGINE, running_cluster
from grasp_deploy.engine.serve import running_server
from tests.cli.command import needs_vllm
from tests.serving.test_kubernetes import ROOT, validate
from tests.serving.test_recipes import PROMPTS, complete

RAY = ROOT / "serving" / "ray"
SERVICE = yaml.safe_load((RAY / "rayservice.yaml").read_text())
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
PODS = [CLUSTER["headGroupSpec"]["template"], CLUSTER["workerGroupSpecs"][0]["template"]]
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install .[ray]"
)


def test_the_service_runs_the_app_with_arguments_it_knows() -> None:
    (app,) = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])["applications"]
    assert app["import_path"] == "serving.ray.app:build"
    source = (RAY / "app.py").read_text()
    settings = source.partition("class Settings")[2].partition("\nclass ")[0]
    assert app["args"].keys() <= set(re.findall(r"^    (\w+): ", settings, flags=re.MULTILINE))
    for override in app["deployments"]:
        assert f"class {override['name']}(" in source
    assert "trust_remote_code" not in source


@pytest.mark.parametrize("pod", PODS, ids=["head", "worker"])
def test_rays_pods_are_valid_and_as_locked_as_the_servers(pod: dict[str, Any]) -> None:
    metadata = {"name": "ray", **pod["metadata"]}
    validate({"apiVersion": "v1", "kind": "Pod", **pod, "metadata": metadata}, "1.37")
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    assert CLUSTER["authOptions"] == {"mode": "token"}
    assert f"ray[serve]=={CLUSTER['rayVersion']}" in (RAY / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def ray_app(demo_model: Path, demo_checkpoint: Path) -> Iterator[str]:
    """Base URL of the app on a Ray cluster of its own, with a token of its own."""
    folders = {"dense": str(demo_model), "pruned": str(demo_checkpoint)}
    with running_cluster() as cluster:
        cluster.deploy({**folders, "engine": ENGINE})
        cluster.wait_for_all()
        yield cluster.url


@pytest.mark.all
@pytest.mark.vllm
@needs_vllm
@needs_ray
def test_ray_answers_as_vllm_does_and_splits_and_streams(
    demo_model: Path, demo_checkpoint: Path, ray_app: str, tmp_path: Path
) -> None:
    own = ["--max-model-len", "512", "--enforce-eager", "--kv-cache-memory-bytes", str(2**27)]
    for name, folder in (("dense", demo_model), ("pruned", demo_checkpoint)):
        with running_server(folder, own, tmp_path / name) as url:
            expected = [complete(url, prompt, str(folder)) for prompt in PROMPTS]
        assert [complete(ray_app, prompt, name) for prompt in PROMPTS] == expected
    seen: Counter[str] = Counter()
    for _ in range(100):
        seen[post(ray_app, stream=False)[0]["model"]] += 1
    assert seen.keys() == {"dense", "pruned"}
    assert 25 <= seen["pruned"] <= 75, "a share of 0.5: outside in one of a million runs"
    chunks = post(ray_app, stream=True)
    assert len(chunks) > 1
    assert len({chunk["model"] for chunk in chunks}) == 1 and chunks[0]["model"] in seen


def post(url: str, stream: bool) -> list[dict[str, Any]]:
    """The documents that a request for the common model name is answered with."""
    body = {"model": "model", "prompt": "import", "max_tokens": 8, "stream": stream}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as response:
        lines = [line.removeprefix("data: ") for line in response.read().decode().splitlines()]
    return [json.loads(line) for line in lines if line and line != "[DONE]"]
