"""Exports repeat the bytes of a compression, in one file or in shards of any size."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.checkpoint.verify import WRONG, verify
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.checkpoint.write.shards import plan_shards, write_shards
from grasp_deploy.checkpoint.write.sidecar_files import pruned_config
from grasp_deploy.errors import InputError
from tests.tiny import tiny_config


def test_many_shards_hold_the_same_model(
    demo_checkpoint: Path, demo_model: Path, tmp_path: Path
) -> None:
    sharded = tmp_path / "sharded"
    plan = load_plan(demo_checkpoint / "plan.grasp")
    export(plan, demo_model, sharded, shard_bytes=1_000_000)
    files = sorted(path.name for path in sharded.glob("*.safetensors") if "model" in path.name)
    assert len(files) >= 4
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == files
    whole = load_file(demo_checkpoint / "model.safetensors")
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(sharded / file)[name], whole[name])
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in whole.values())
    assert AutoModelForCausalLM.from_pretrained(sharded).dtype == torch.bfloat16
    assert all(check.outcome != WRONG for check in verify(sharded, without_base=True))


def test_a_model_in_other_files_is_refused_before_it_is_read(
    demo_checkpoint: Path, demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Path(shutil.copytree(demo_model, tmp_path / "base"))
    model = AutoModelForCausalLM.from_pretrained(base)
    (base / "model.safetensors").unlink()
    model.save_pretrained(base, max_shard_size="1MB")
    monkeypatch.setattr("grasp_deploy.checkpoint.write.export.write_checkpoint", None)
    with pytest.raises(InputError, match="weight files other names, than this model's"):
        export(load_plan(demo_checkpoint / PLAN_FILE), base, tmp_path / "out")


@pytest.mark.parametrize("shard_bytes", [1, 20_000, 40_000, 10**9])
def test_shards_hold_as_many_whole_tensors_as_fit(shard_bytes: int) -> None:
    shape = model_shape(tiny_config("llama").to_dict())
    sizes = {name: 4 * torch.Size(size).numel() for name, size in shape.tensor_shapes().items()}
    shards = list(plan_shards(shape, shard_bytes).values())
    assert [name for shard in shards for name in shard] == list(sizes)
    filled = [sum(sizes[name] for name in shard) for shard in shards]
    for shard, size, following in zip(shards, filled, [*shards[1:], None], strict=True):
        assert size <= shard_bytes or len(shard) == 1
        assert following is None or size + sizes[following[0]] > shard_bytes


def test_a_factor_of_positions_is_a_float() -> None:
    """vLLM's linear spread takes a whole number for a list."""
    rope = {"rope_type": "linear", "factor": 4}
    of_kinds = {"full_attention": rope, "sliding_attention": {"rope_type": "default"}}
    for family, stated in (("llama", rope), ("gemma3_text", of_kinds)):
        config = {**tiny_config(family).to_dict(), "rope_parameters": stated}
        written = pruned_config(config, model_shape(config))["rope_parameters"]
        factor = written.get("full_attention", written)["factor"]
        assert written == stated and isinstance(factor, float)


def test_data_starts_on_a_multiple_of_eight_bytes(tmp_path: Path) -> None:
    shape = model_shape(tiny_config("llama").to_dict())
    for vocabulary in (1, 10, 100, 1000):  # each changes the length of the header
        sized = replace(shape, vocab_size=vocabulary)
        tensors = ((name, torch.zeros(size)) for name, size in sized.tensor_shapes().items())
        write_shards(tmp_path, sized, tensors, 10**9)
        content = (tmp_path / "model.safetensors").read_bytes()
        assert int.from_bytes(content[:8], "little") % 8 == 0
