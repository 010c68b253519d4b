"""Running moments against two passes over all tokens at once."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.baselines.moments import Moments, add_bias
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.layout import on_outputs, output_projections
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.tiny_units import generator
from tests.tiny import tiny_model


@settings(max_examples=100)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.sampled_from((0.0, 1.0, 1e4)),
    st.integers(0, 1000),
)
def test_batches_of_any_sizes_give_the_moments_of_all(
    sizes: list[int], mean: float, seed: int
) -> None:
    rows = mean + torch.randn(sum(sizes), 3, generator=generator(seed))
    moments = Moments(3, torch.device("cpu"))
    for part in rows.split(sizes):
        moments.add(part)
    rows = rows.double()
    scale = float(rows.abs().max())
    variance = rows.var(0) if len(rows) > 1 else torch.zeros(3).double()
    assert moments.tokens == len(rows)
    torch.testing.assert_close(moments.mean, rows.mean(0), rtol=1e-6, atol=1e-6 * scale)
    torch.testing.assert_close(moments.variance, variance, rtol=1e-6, atol=1e-12 * scale**2)
    torch.testing.assert_close(moments.norm, rows.norm(dim=0), rtol=1e-6, atol=1e-6 * scale)
    tensors = [value for value in vars(moments).values() if isinstance(value, Tensor)]
    assert all(tensor.shape == (3,) for tensor in tensors)  # nothing grows with the tokens


@torch.no_grad()
def test_a_bias_keeps_the_mean_of_what_a_layer_adds() -> None:
    """Of the first layer's attention: nothing before it was removed, so what it reads is as was."""
    model, ids = tiny_model("llama"), torch.randint(256, (8, 16), generator=generator(0))
    config: Any = model.config
    pair = config.intermediate_size, config.num_key_value_heads
    units = UnitTable.of_layers([pair] * config.num_hidden_layers)
    mask = ~torch.isin(torch.arange(units.size), torch.tensor([0, 1, units.starts[1]]))
    projection, added = output_projections(model)[1], [torch.empty(0)]

    def mean_added(gate_values: Tensor) -> Tensor:
        with (
            gated(model, units) as gates,
            on_outputs({0: projection}, lambda _, y: added.__setitem__(0, y)),
        ):
            gates.assign(gate_values)
            model(input_ids=ids)
        return added[0].mean((0, 1))

    before, gates = mean_added(torch.ones(units.size)), mask.float()
    assert not torch.allclose(mean_added(gates), before, rtol=1e-2)
    add_bias(model, units, mask, CalibrationText(ids, 4))
    torch.testing.assert_close(mean_added(gates), before, rtol=1e-4, atol=1e-6)
