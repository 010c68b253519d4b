"""What `up` takes for done already."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from grasp_deploy.cli.up import default_output, is_done
from grasp_deploy.compression.compress import compress
from grasp_deploy.config.compress_config import CompressConfig
from tests.tiny import save_tiny

COSTS = "import torch\ndef f(units, shape): return torch.ones(units.size)"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompressConfig:
    monkeypatch.chdir(tmp_path)
    save_tiny("llama", tmp_path / "model")
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
    schedule = {"sequences": 16, "sequence_length": 32, "epochs": 1, "scale_epochs": 0}
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
        patch.setattr("grasp_deploy.__version__", "0.0.1")
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
