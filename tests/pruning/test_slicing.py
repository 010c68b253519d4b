"""Cutting one tensor: which columns stay, and how scales are folded into them."""

import torch

from grasp_deploy.pruning.slicing import cut_tensor, layer_cut
from tests.pruning.tiny_units import UNITS, generator


def test_scales_are_folded_in_float32_and_rounded_once() -> None:
    """Rounded by itself first, a scale would add an error of its own to every weight."""
    mask = torch.arange(UNITS.size) % 2 == 0
    scales = 0.5 + torch.rand(UNITS.size, generator=generator(1))
    dense = torch.randn(130, UNITS.ffn_channels[0], generator=generator(2)).bfloat16()
    cut = layer_cut(UNITS, 0, mask, scales)
    stays = mask[UNITS.ffn(0)]
    expected = (dense.float()[:, stays] * scales[UNITS.ffn(0)][stays]).bfloat16()
    assert torch.equal(cut_tensor("mlp.down_proj.weight", dense, cut), expected)
