"""A synthesized config keeps what the budget allows, and comes from its seed alone."""

from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.read.loading import random_model
from grasp_deploy.compression.synthesize import synthesize
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from tests.cli.command import tree
from tests.tiny import VARIANTS, tiny_config

LLAMA_2_7B = Path(__file__).parents[2] / "benchmarks" / "configs" / "llama-2-7b.json"
LLAMA: dict[str, Any] = {"family": "llama", "num_key_value_heads": 4, "intermediate_size": 192}


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    """The config of a model of 3 layers, each of 192 channels and 4 KV groups."""
    tiny_config(**LLAMA).to_json_file(tmp_path / "dense.json")
    return tmp_path / "dense.json"


def groups_and_channels(shape: ModelShape) -> tuple[list[int], list[int]]:
    groups = [layer.num_key_value_heads for layer in shape.layers]
    return groups, [layer.intermediate_size for layer in shape.layers]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_gives_a_config_that_a_model_can_be_built_from(
    variant: str, tmp_path: Path
) -> None:
    tiny_config(**VARIANTS[variant], dtype="bfloat16").save_pretrained(tmp_path / "dense")
    config = CompressConfig(model=str(tmp_path / "dense"), keep=0.6)
    shape = synthesize(config, tmp_path / "pruned")
    assert [path.name for path in (tmp_path / "pruned").iterdir()] == ["config.json"]
    assert model_shape(read_config(tmp_path / "pruned")) == shape
    assert shape.pruned and shape.dtype == "bfloat16"
    model = random_model(tmp_path / "pruned", "cpu")
    assert sum(p.numel() for p in model.parameters()) == shape.parameters


def test_the_seed_decides_and_the_same_seed_gives_the_same_bytes(
    dense: Path, tmp_path: Path
) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        synthesize(CompressConfig(model=str(dense), keep=0.5, seed=seed), tmp_path / name)
    a, b, c = (tree(tmp_path / name) for name in "abc")
    assert a == b != c


def test_the_papers_models_can_be_rebuilt(tmp_path: Path) -> None:
    config = CompressConfig(model=str(LLAMA_2_7B), keep=0.6)
    shape = synthesize(config, tmp_path / "pruned", kv_keep=606 / 1024)
    assert sum(groups_and_channels(shape)[0]) == 606
    assert shape.weight_bytes / 2**20 == pytest.approx(7910.7, rel=0.005)


def test_shares_that_do_not_go_together_are_named_as_given(dense: Path, tmp_path: Path) -> None:
    config = CompressConfig(model=str(dense), weights="400KB")
    with pytest.raises(InputError, match="--weights 400KB and --kv-keep 1 do not go together"):
        synthesize(config, tmp_path / "pruned", kv_keep=1.0)
