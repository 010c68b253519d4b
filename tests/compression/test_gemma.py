"""A model with norms behind its branches and windows in some layers, through a compression."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grasp_deploy.checkpoint.read.loading import load_tokenizer
from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.run_options import RunOptions
from tests.compression.conftest import MakeConfig
from tests.tiny import VARIANTS, save_tiny


def test_channels_go_and_norms_carry_their_scales(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base, output = tmp_path / "model", tmp_path / "out"
    save_tiny(directory=base, **VARIANTS["gemma3-sliding"])
    config = make_config(model=str(base), keep=0.6, method="progressive", rounds=1)
    plan = compress(config, RunOptions(output)).plan
    assert "only FFN channels are pruned, since only some layers see a window" in caplog.text
    card = (output / "README.md").read_text()
    assert "FFN channels were chosen by" in card and "KV-head groups" not in card
    assert all(check.ok for check in verify(output))
    assert [groups for _, groups in plan.dense_layers] == 3 * [2]
    dense, cut = (load_file(folder / "model.safetensors") for folder in (base, output))
    assert dense["model.layers.1.self_attn.k_proj.weight"].shape == (64, 64)
    for name, weight in cut.items():
        if "self_attn" in name and "o_proj" not in name:
            assert torch.equal(weight, dense[name]), name
    assert plan.norm_scales is not None
    for row, norm in ((1, "layers.0.pre_feedforward_layernorm"), (-1, "norm")):
        name = f"model.{norm}.weight"
        assert torch.equal(cut[name], (dense[name] + 1) * plan.norm_scales[row] - 1)
        assert not torch.equal(cut[name], dense[name])
    assert load_tokenizer(output).needs_first_token
    behind = "model.layers.0.post_feedforward_layernorm.weight"
    assert torch.equal(cut[behind], dense[behind])
