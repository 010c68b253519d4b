"""The flat axis: where the units of each layer lie."""

from __future__ import annotations

import torch

from grasp_deploy.pruning.units import UnitTable

# Layer 0: units 0-3 are FFN channels, 4-5 KV groups. Layer 1: 6-8 and 9.
UNITS = UnitTable.of_layers([(4, 2), (3, 1)])


def test_units_of_a_layer_lie_side_by_side_channels_first() -> None:
    assert (UNITS.layers, UNITS.size) == (2, 10)
    assert (UNITS.ffn_channels, UNITS.kv_groups) == ((4, 3), (2, 1))
    axis = list(range(10))
    assert [axis[UNITS.ffn(layer)] for layer in range(2)] == [[0, 1, 2, 3], [6, 7, 8]]
    assert [axis[UNITS.kv(layer)] for layer in range(2)] == [[4, 5], [9]]
    assert UNITS.segment_of_unit.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2, 3]
    assert UNITS.is_kv.nonzero().flatten().tolist() == [4, 5, 9]


def test_spread_gives_each_unit_its_layers_value() -> None:
    spread = UNITS.spread([1.5, 2.5], [10.0, 20.0])
    assert spread.tolist() == [1.5, 1.5, 1.5, 1.5, 10, 10, 2.5, 2.5, 2.5, 20]


def test_kept_units_are_counted_per_layer_and_in_all() -> None:
    mask = torch.tensor([1, 0, 1, 0, 0, 1, 1, 1, 1, 1], dtype=torch.bool)
    assert UNITS.kept_per_layer(mask) == [(2, 1), (3, 1)]
    assert UNITS.kept_shares(mask) == (5 / 7, 2 / 3)
