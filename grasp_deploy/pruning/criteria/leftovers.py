"""What is left of each unit's inputs once all others have predicted them.

The inputs of one `down_proj` or `o_proj` have the Gram matrix `Σ y yᵀ`; the covariance of a block
of them, given all others, is the inverse of the block's place in the inverse of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.criteria.batches import batches
from grasp_deploy.pruning.gates import decoder_layers
from grasp_deploy.pruning.layerwise import attend, embedded, feed_forward, layer_calls
from grasp_deploy.pruning.objective import OVERFLOW, LossError
from grasp_deploy.pruning.units import UnitTable

RIDGE = 0.01  # of each input's own power


class Leftovers:
    """The `(n, w, w)` float64 covariances of the units of each segment, given all other kept ones.

    Sees the Gram matrix of one linear layer after the other: in a pass of its own, or in the
    compensation, which sums the same products. A model's together would be larger than the model.
    Removed units have zeros.
    """

    def __init__(self, units: UnitTable, mask: Tensor, tokens: int) -> None:
        self._kept = mask.split(units.segment_sizes)
        self._tokens = tokens
        self.of_segment: dict[int, Tensor] = {}

    @property
    def complete(self) -> bool:
        """Whether every linear layer has been seen."""
        return len(self.of_segment) == len(self._kept)

    def see(self, segment: int, gram: Tensor) -> None:
        """Take in the `(c, c)` float64 sums over tokens of the products of the kept columns.

        Raises LossError if they are not finite.
        """
        kept = self._kept[segment].to(gram.device)
        width = len(gram) // count if (count := int(kept.sum())) else 1
        self.of_segment[segment] = gram.new_zeros(len(kept), width, width)
        self.of_segment[segment][kept] = unexplained(gram / self._tokens, width)

    @torch.no_grad()
    def look(self, model: nn.Module, blocks: Tensor, batch_size: int) -> None:
        """See all of a model on `(n, T)` blocks, to the bit as the compensation would have it."""
        read = list(batches(model, blocks, batch_size, None))
        calls = layer_calls(model, read)
        hidden = embedded(model, read)
        for index, layer in enumerate(decoder_layers(model)):
            gram = _Gram(layer.self_attn.o_proj, self._kept[2 * index + 1])
            for place, call in enumerate(calls[index]):
                added, inputs = attend(layer, hidden[place], call)
                hidden[place] = hidden[place] + added
                gram.add(inputs)
            self.see(2 * index + 1, gram.sums)
            gram = _Gram(layer.mlp.down_proj, self._kept[2 * index])
            for place, middle in enumerate(hidden):
                added, inputs = feed_forward(layer, middle)
                hidden[place] = middle + added
                gram.add(inputs)
            self.see(2 * index, gram.sums)


class _Gram:
    """Sums over tokens of the products of the columns that the kept units hold."""

    def __init__(self, linear: nn.Linear, kept: Tensor) -> None:
        width, device = linear.in_features // len(kept), linear.weight.device
        self._columns = kept.to(device).repeat_interleave(width).nonzero().flatten()
        size = len(self._columns)
        self.sums = torch.zeros(size, size, dtype=torch.float64, device=device)

    def add(self, inputs: Tensor) -> None:
        """Take in `(B, T, width)` inputs; in float64, since they differ by orders of magnitude."""
        rows = inputs[..., self._columns].flatten(end_dim=-2).double()
        self.sums += rows.T @ rows


def unexplained(gram: Tensor, width: int, ridge: float = RIDGE) -> Tensor:
    """`(n, width, width)` covariances of blocks of columns, given all columns outside each block.

    `gram` holds the `(n·width, n·width)` float64 mean products of the columns. The share `ridge` of
    each column's power counts as noise that nothing explains: its own, so that a column a thousand
    times as large as the others, as real models have, makes no difference to them.
    """
    count = len(gram) // width
    power = gram.diagonal()
    if not bool(power.isfinite().all()):
        raise LossError(f"the hidden states are not finite: {OVERFLOW}")
    if not bool(power.any()):
        return gram.new_zeros(count, width, width)
    regular = gram.clone()
    regular.diagonal().add_(ridge * power + 1e-12 * power.mean())  # columns may be always 0
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(regular))
    blocks = inverse.view(count, width, count, width).diagonal(dim1=0, dim2=2)
    return torch.linalg.inv(blocks.permute(2, 0, 1))
