"""The shapes that a table measures: steps of the FFN's width, of KV groups, and of both."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.plan import pruned_layers
from grasp_deploy.config.latency_options import LatencySettings
from grasp_deploy.errors import InputError


class Sizes(NamedTuple):
    """What every layer of a shape keeps."""

    ffn_channels: int
    kv_groups: int


def sizes_to_measure(dense: ModelShape, settings: LatencySettings) -> list[Sizes]:
    """Widths in tiles with all KV groups, groups with all channels, and two shapes of both.

    The two, the least and the middle, show how far the times of both kinds add up. Raises
    InputError for a pruned model, or a tile that leaves no width below the dense one.
    """
    if dense.pruned:
        raise InputError("the model is already pruned: name the dense model that it came from")
    layer, tile = dense.layers[0], settings.tile
    all_channels, all_groups = layer.intermediate_size, layer.num_key_value_heads
    steps = min(settings.steps, max(all_channels, all_groups))  # finer ones add nothing
    shares = [step / steps for step in range(1, steps)]
    tiles = {max(1, round(all_channels * share / tile)) for share in shares}
    widths = sorted(tile * count for count in tiles if tile * count < all_channels)
    groups = sorted({round(all_groups * share) for share in shares} - {0, all_groups})
    if not widths:
        raise InputError(
            f"--tile {tile} leaves no width below the model's {all_channels} FFN channels: give "
            "a smaller one"
        )
    sizes = [Sizes(width, all_groups) for width in widths]
    if groups:
        sizes += [Sizes(all_channels, count) for count in groups]
        middle = Sizes(widths[len(widths) // 2], groups[len(groups) // 2])
        sizes += dict.fromkeys([Sizes(widths[0], groups[0]), middle])
    return sizes


def uniform(dense: ModelShape, sizes: Sizes) -> ModelShape:
    """The pruned shape whose layers all keep these sizes."""
    layers = pruned_layers(dense, [(sizes.ffn_channels, sizes.kv_groups)] * len(dense.layers))
    return replace(dense, layers=layers, pruned=True)
