"""Random weights have a config's shapes, come from a seed, and are made where they stay."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker
from transformers.core_model_loading import revert_weight_conversion

from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.read.loading import STANDARD_DEVIATION, random_model
from tests.tiny import VARIANTS, logits_of, pruned_config, tiny_config


def write_config(folder: Path, variant: str, *, pruned: bool = False) -> ModelShape:
    """Put a config.json in a folder; returns the shape that it describes."""
    config: Any = tiny_config(**VARIANTS[variant], dtype="bfloat16")
    if pruned:
        ffn = (8, 4, 2) if "moe" in variant else (96, 40, 1)
        layers = list(zip((1, config.num_key_value_heads, 1), ffn, strict=True))
        config = pruned_config(config, layers)
        config.architectures = [f"Grasp{name}" for name in config.architectures]
    config.save_pretrained(folder)
    return model_shape(read_config(folder))


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_has_the_tensors_of_its_config(
    variant: str, pruned: bool, tmp_path: Path
) -> None:
    shape = write_config(tmp_path, variant, pruned=pruned)
    model = random_model(tmp_path, "cpu")
    in_files = revert_weight_conversion(model, dict(model.named_parameters()))
    assert {n: tuple(p.shape) for n, p in in_files.items()} == shape.tensor_shapes()
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not model.training
    logits = logits_of(model, torch.arange(32).reshape(2, 16))
    assert bool(torch.isfinite(logits).all()) and float(logits.float().std()) > 0
    weight = next(p for n, p in in_files.items() if n.endswith("up_proj.weight")).detach().float()
    assert float(weight.std()) == pytest.approx(STANDARD_DEVIATION, rel=0.05)


def test_the_seed_decides_and_nobody_elses_numbers_do(tmp_path: Path) -> None:
    write_config(tmp_path, "qwen3")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = list(random_model(tmp_path, "cpu", seed=1).parameters())
    assert torch.equal(torch.rand(3), expected), "the caller's random state has moved"
    again = random_model(tmp_path / "config.json", "cpu", seed=1).parameters()
    other = random_model(tmp_path, "cpu", seed=2).parameters()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], next(iter(other)))


@pytest.mark.parametrize(("dtype", "width"), [("auto", 2), ("float16", 2), ("float32", 4)])
def test_no_copy_is_made_in_another_dtype(dtype: str, width: int, tmp_path: Path) -> None:
    shape = write_config(tmp_path, "llama")
    with MemTracker() as tracker:
        model = random_model(tmp_path, "cpu", dtype)
    peak_bytes = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert sum(p.nbytes for p in model.parameters()) == shape.parameters * width
    tables = 4 * 32 * 4  # the rotary frequencies, and what they are made of
    assert peak_bytes <= shape.parameters * width + tables
