"""What goes with a unit: the rows and columns of weights that no model keeps without it.

    FFN channel   a row of gate_proj and of up_proj, a column of down_proj
    KV group      D rows of k_proj and of v_proj, G·D rows of q_proj, G·D columns of o_proj

LLM-Pruner calls them coupled structures (Ma et al. 2023, section 3.1). A row takes its bias along;
the biases of down_proj and o_proj and the q/k norms stay, whatever is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.gates import decoder_layers
from grasp_deploy.pruning.units import UnitTable


@dataclass(frozen=True)
class Coupled:
    """A linear layer that loses rows or columns with the units of one segment."""

    segment: int
    linear: nn.Linear
    by_rows: bool

    @property
    def parameters(self) -> list[Tensor]:
        """The weight and, where rows go, the bias."""
        takes_bias = self.by_rows and self.linear.bias is not None
        return [self.linear.weight, self.linear.bias] if takes_bias else [self.linear.weight]

    def vector_sums(self, parameter: Tensor, values: Tensor) -> Tensor:
        """Sums of a parameter's `values` over each row or column, whichever goes with units."""
        if parameter is not self.linear.weight:
            return values  # a bias has one value a row
        return values.sum(1 if self.by_rows else 0)


def coupled_linears(model: nn.Module) -> Iterator[Coupled]:
    """All prunable linear layers of a causal language model, layer by layer."""
    for index, layer in enumerate(decoder_layers(model)):
        ffn, attention = layer.mlp, layer.self_attn
        yield Coupled(2 * index, ffn.gate_proj, True)
        yield Coupled(2 * index, ffn.up_proj, True)
        yield Coupled(2 * index, ffn.down_proj, False)
        yield Coupled(2 * index + 1, attention.q_proj, True)
        yield Coupled(2 * index + 1, attention.k_proj, True)
        yield Coupled(2 * index + 1, attention.v_proj, True)
        yield Coupled(2 * index + 1, attention.o_proj, False)


def gated_linears(model: nn.Module) -> list[nn.Linear]:
    """`(2L,)` linear layers in whose inputs the gates stand: down_proj and o_proj by segment."""
    return [coupled.linear for coupled in coupled_linears(model) if not coupled.by_rows]


def add_up(model: nn.Module, units: UnitTable, vectors_of: Callable[[Coupled], Tensor]) -> Tensor:
    """`(N,)` float64 sums over a unit's vectors, in all linear layers that lose any with it.

    `vectors_of` gives one value for each row or column of a linear layer; units lie one after the
    other there, each with as many as the next.
    """
    device = next(model.parameters()).device
    totals = [torch.zeros(size, dtype=torch.float64, device=device) for size in units.segment_sizes]
    for coupled in coupled_linears(model):
        total = totals[coupled.segment]
        total += vectors_of(coupled).double().view(len(total), -1).sum(1)
    return torch.cat(totals)
