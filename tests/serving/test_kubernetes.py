"""The manifests follow Kubernetes' schemas, agree with each other, and say what the code does."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from grasp_deploy.engine.flags import read_flags
from grasp_deploy.engine.serve import DRAIN_SECONDS, EXIT_SECONDS, PORT
from grasp_deploy.version import __version__
from tests.cli.command import SHORT, needs_vllm

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "serving" / "kubernetes"
PLAIN = ["base/server", "base/traffic", "base/scaling", "storage", "compress-job"]
PLAIN += ["leaderworkerset", "network"]
CUSTOM = {"PodMonitor", "LeaderWorkerSet"}  # no registry has schemas for both
OLDEST, NEWEST = "1.30", "1.37"
Document = dict[str, Any]


def documents(name: str) -> list[Document]:
    return list(yaml.safe_load_all((KUBERNETES / f"{name}.yaml").read_text()))


def kustomized() -> list[Document]:
    """What the README's command makes of all."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    readme = (KUBERNETES / "README.md").read_text()
    (line,) = re.findall(r"^kubectl kustomize [^#\n]*", readme, flags=re.MULTILINE)
    done = subprocess.run(
        shlex.split(line), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def validate(document: Document, version: str) -> None:
    reason = "kubernetes-validate is not installed: pip install .[dev]"
    module = pytest.importorskip("kubernetes_validate", reason=reason)
    if document["kind"] not in CUSTOM:
        module.validate(document, version, strict=True)


GROUP = documents("leaderworkerset")[0]["spec"]["leaderWorkerTemplate"]
PODS = {
    "server": documents("base/server")[0]["spec"]["template"],
    "job": documents("compress-job")[0]["spec"]["template"],
    "leader": GROUP["leaderTemplate"],
    "worker": GROUP["workerTemplate"],
}


def serve_flags(pod: Document) -> list[str]:
    """What stands behind `--`, with Kubernetes' variables filled in."""
    arguments = pod["spec"]["containers"][0]["args"]
    assert arguments[:2] == ["/model", "--"]
    return [re.sub(r"\$\(LWS_\w+\)", "2", flag).replace("$(MODEL)", "m") for flag in arguments[2:]]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", PLAIN)
def test_every_file_follows_the_schemas(name: str, version: str) -> None:
    for document in documents(name):
        validate(document, version)


def test_dense_and_pruned_are_told_apart_by_every_selector() -> None:
    made = kustomized()
    names = [(document["kind"], document["metadata"]["name"]) for document in made]
    assert len(set(names)) == len(names)
    for document in made:
        validate(document, NEWEST)
        assert document["kind"] == "Namespace" or document["metadata"]["namespace"] == "grasp"
    for model in ("dense", "pruned"):
        mine = {d["kind"]: d["spec"] for d in made if d["metadata"]["name"] == f"grasp-{model}"}
        assert {"Deployment", "Service", "NetworkPolicy", "HorizontalPodAutoscaler"} < mine.keys()
        labels = mine["Deployment"]["template"]["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == model
        assert mine["Service"]["selector"] == labels
        assert mine["NetworkPolicy"]["podSelector"]["matchLabels"] == labels
        for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
            assert mine[kind]["selector"]["matchLabels"] == labels, kind
        assert mine["HorizontalPodAutoscaler"]["scaleTargetRef"]["name"] == f"grasp-{model}"


def test_a_policy_holds_for_every_pod_and_lets_in_only_what_serving_needs() -> None:
    closed, groups = (document["spec"] for document in documents("network"))
    assert closed == {"podSelector": {}, "policyTypes": ["Ingress"]}
    (group,), own = groups["podSelector"]["matchExpressions"], groups["ingress"][0]
    assert own == {"from": [{"podSelector": groups["podSelector"]}]}
    base = documents("base/traffic")[1]["spec"]["ingress"][0]
    assert groups["ingress"][1] == {"ports": [{"port": PORT}], "from": base["from"]}
    assert all(rule["ports"] for rule in groups["ingress"][1:])
    (ray,) = yaml.safe_load_all((ROOT / "serving" / "ray" / "rayservice.yaml").read_text())
    cluster, chart = ray["spec"]["rayClusterConfig"], documents("production-stack-values")[0]
    nodes = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    of_several = [PODS["leader"], PODS["worker"], *(node["template"] for node in nodes)]
    labels = [pod["metadata"]["labels"] for pod in of_several]
    labels += [chart[part]["labels"] for part in ("routerSpec", "servingEngineSpec")]
    assert all(group["key"] in each for each in labels)


@pytest.mark.parametrize("name", ["server", "leader"])
def test_a_server_asks_for_a_key_if_there_is_a_secret(name: str) -> None:
    (key,) = [e for e in PODS[name]["spec"]["containers"][0]["env"] if e["name"] == "VLLM_API_KEY"]
    assert key["valueFrom"]["secretKeyRef"]["optional"]


@needs_vllm
@pytest.mark.slow
def test_the_pages_name_all_that_vllm_guards_by_the_key() -> None:
    from vllm.entrypoints.serve.middleware.authenticate import GUARDED_PREFIX

    assert "/invocations" not in GUARDED_PREFIX
    for page in ("SECURITY.md", "serving/README.md"):
        text = (ROOT / page).read_text()
        assert all(f"`{path}`" in text for path in (*GUARDED_PREFIX, "/invocations")), page


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_pods_run_as_the_images_user_and_write_only_where_a_volume_lies(pod: Document) -> None:
    dockerfile = (ROOT / "serving" / "Dockerfile").read_text()
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    (user,) = re.findall(r"^USER (\d+)$", dockerfile, flags=re.MULTILINE)
    assert spec["securityContext"]["runAsUser"] == int(user)
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"] in ("grasp-deploy", f"registry.example/grasp-deploy:{__version__}")
    assert not spec["enableServiceLinks"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted.keys() == {volume["name"] for volume in spec["volumes"]}
    (home,) = re.findall(r"^ENV HOME=(\S+)", dockerfile, flags=re.MULTILINE)
    assert {home, "/tmp"} < set(mounted.values())


@pytest.mark.parametrize("name", ["server", "leader"])
def test_a_server_listens_for_its_probes_and_has_the_time_to_drain(name: str) -> None:
    spec, (container,) = PODS[name]["spec"], PODS[name]["spec"]["containers"]
    end_seconds = DRAIN_SECONDS + EXIT_SECONDS
    end_seconds += container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert end_seconds < spec["terminationGracePeriodSeconds"]
    flags = read_flags(serve_flags(PODS[name]))
    assert (flags.host, flags.port) == ("0.0.0.0", PORT)
    assert container["ports"] == [{"name": "http", "containerPort": PORT}]


@needs_vllm
@pytest.mark.slow
def test_vllm_knows_every_flag() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    models = documents("production-stack-values")[0]["servingEngineSpec"]["modelSpec"]
    lines = [serve_flags(PODS[name]) for name in ("server", "leader", "worker")]
    for flags in (*lines, *(model["vllmConfig"]["extraArgs"] for model in models)):
        parser.parse_args(flags)


def test_the_autoscaler_asks_for_the_metric_that_the_adapter_offers() -> None:
    (rule,) = documents("prometheus-adapter-values")[0]["rules"]["custom"]
    (metric,) = documents("base/scaling")[0]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert re.fullmatch(rule["name"]["matches"], rule["seriesQuery"].partition("{")[0])


@pytest.mark.slow
def test_the_jobs_command_compresses(demo_model: Path, tmp_path: Path) -> None:
    (container,) = PODS["job"]["spec"]["containers"]
    program, *flags, each = container["command"]
    assert (program, each) == ("torchrun", "--nproc-per-node=gpu")
    (tmp_path / "dense").symlink_to(demo_model)
    words = [word.replace("/models", str(tmp_path)) for word in container["args"]]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *flags, "--nproc-per-node=2"]
    command = [*torchrun, *words, *SHORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pruned" / "config.json").is_file()
