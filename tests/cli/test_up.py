"""`up`: what it refuses before it compresses, and what it takes for done already."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from grasp_deploy.cli.compress import default_output, is_done
from grasp_deploy.compression.compress import compress
from grasp_deploy.config.compress_config import CompressConfig
from tests.cli.command import SHORT, assert_refused, grasp_deploy, needs_vllm, tree
from tests.tiny import save_tiny

COSTS = "import torch\ndef f(units, shape): return torch.ones(units.size)"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompressConfig:
    monkeypatch.chdir(tmp_path)
    save_tiny("llama", tmp_path / "model")
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
    schedule = {"sequences": 4, "sequence_length": 16, "rounds": 1, "scale_epochs": 0}
    return CompressConfig(model="model", keep=0.6, calibration=("text.txt",), **schedule)  # type: ignore[arg-type]


def test_the_result_of_the_same_options_and_files_is_done(
    config: CompressConfig, tmp_path: Path
) -> None:
    output = tmp_path / default_output(config)
    assert output.name == "model-keep-0.6"
    assert not is_done(config, output)
    compress(config, output)
    assert is_done(config, output)
    assert not is_done(replace(config, seed=1), output)
    (tmp_path / "text.txt").write_text("A slow red hen walks around the busy cat. " * 100)
    assert not is_done(config, output)


def test_other_weights_and_another_release_are_not_done(
    config: CompressConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress(config, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("grasp_deploy.compression.provenance.__version__", "0.0.1")
        assert not is_done(config, tmp_path / "out")
    assert is_done(config, tmp_path / "out")
    save_tiny("llama", tmp_path / "model", seed=1)
    assert not is_done(config, tmp_path / "out")


def test_a_changed_cost_function_is_not_done(
    config: CompressConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "up_costs.py").write_text(COSTS)
    with_costs = replace(config, cost="up_costs:f")
    compress(with_costs, tmp_path / "out")
    assert is_done(with_costs, tmp_path / "out")
    import up_costs  # type: ignore[import-not-found]

    monkeypatch.setattr(up_costs, "f", lambda units, shape: [1.0 + i for i in range(units.size)])
    assert not is_done(with_costs, tmp_path / "out")
    assert json.loads((tmp_path / "out/compress_config.json").read_text())["cost"] == "up_costs:f"


@pytest.mark.parametrize("command", ["compress", "up"])
def test_an_unknown_option_is_named(tiny_folder: Path, work: Path, command: str) -> None:
    ended = grasp_deploy(command, tiny_folder, "-o", "out", "--keep", "0.6", "--keeep", "0.5")
    assert (ended.code, ended.stdout) == (2, "")
    assert "No such option: --keeep" in ended.stderr
    assert list(work.iterdir()) == [work / "text.txt"]


@needs_vllm
def test_up_refuses_before_it_compresses(tiny_folder: Path, work: Path) -> None:
    text = ("--calibration", "text.txt", "--keep", "0.6")
    assert_refused(grasp_deploy("up", tiny_folder, "--keep", "60"), "write 0.6")
    parallel = ("up", tiny_folder, *text, "--", "-tp", "2")
    assert_refused(grasp_deploy(*parallel), "split the model among 2", "add --tensor-parallel 2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        refused = grasp_deploy("up", tiny_folder, *text, "--", "--port", port)
    assert_refused(refused, f"port {port} of 127.0.0.1 is in use")
    assert [path.name for path in work.iterdir()] == ["text.txt"]


@needs_vllm
def test_up_does_not_touch_what_was_made_otherwise(
    pruned: Path, tiny_folder: Path, work: Path
) -> None:
    before = tree(pruned)
    options = ("--calibration", "text.txt", "--keep", "0.5", *SHORT)
    refused = grasp_deploy("up", tiny_folder, "-o", pruned, *options)
    assert_refused(refused, "was made with other options, files or release", "--overwrite")
    assert tree(pruned) == before
