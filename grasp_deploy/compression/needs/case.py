"""The numbers that decide what a compression needs: of the shape, options and processes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.plan import pruned_layers
from grasp_deploy.checkpoint.read.dtypes import wanted_dtype
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.compression.own_text import rows_at_once
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import calibration_sources
from grasp_deploy.data.mixture import shares
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.schedule import CalibrationBlocks


@dataclass(frozen=True)
class Case:
    """One way to run a compression. Sizes of matrices are those of the widest layer."""

    shape: ModelShape
    config: CompressConfig
    on_gpu: bool
    processes: int = 1
    offload: bool = False  # weights wait on the CPU
    keep: float = 1.0  # share of the output projections' columns that stays

    @property
    def is_divided(self) -> bool:
        """True if FSDP2 divides the weights, embeddings and head apart."""
        return self.processes > 1 or self.offload

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the weights as computed with."""
        device = torch.device("cuda" if self.on_gpu else "cpu")
        return wanted_dtype(self.shape.dtype, device, self.config.dtype)

    @property
    def dtype_bytes(self) -> int:
        """Bytes of such a weight."""
        return self.torch_dtype.itemsize

    @property
    def channels(self) -> int:
        """FFN channels of the widest layer."""
        return max(layer.intermediate_size for layer in self.shape.layers)

    @property
    def queries(self) -> int:
        """Columns of `o_proj`: query heads times their width."""
        return max(layer.num_attention_heads for layer in self.shape.layers) * self.shape.head_dim

    @property
    def keys(self) -> int:
        """Rows of `k_proj`: KV heads times their width."""
        return max(layer.num_key_value_heads for layer in self.shape.layers) * self.shape.head_dim

    @cached_property
    def parts(self) -> dict[str, int]:
        """Parameters of what FSDP2 gathers at once: attention and MLP of a layer, and the head."""
        shapes = self.shape.tensor_shapes().items()
        layer = "model.layers.0."
        of = {
            half: sum(math.prod(size) for name, size in shapes if name.startswith(layer + half))
            for half in ("self_attn", "mlp")
        }
        return {**of, "head": self.shape.vocab_size * self.shape.hidden_size}

    @property
    def output_values(self) -> int:
        """Weights of all output projections, which alone are refitted."""
        return len(self.shape.layers) * self.shape.hidden_size * (self.channels + self.queries)

    @property
    def units(self) -> int:
        """`N`."""
        return sum(x.intermediate_size + x.num_key_value_heads for x in self.shape.layers)

    @cached_property
    def sources(self) -> list[tuple[int, bool]]:
        """Sequences of each source, and whether the model writes them itself."""
        config = self.config
        given = calibration_sources(
            config.calibration, config.calibration_split, config.calibration_column
        )
        counts = shares([source.weight for source in given], config.sequences)
        return list(zip(counts, (source.is_own for source in given), strict=True))

    @property
    def own_sequences(self) -> int:
        """Sequences that the model writes itself."""
        return sum(count for count, is_own in self.sources if is_own)

    @property
    def own_rows(self) -> int:
        """Of those, the sequences written at once by all processes."""
        return min(self.own_sequences, rows_at_once(self.shape, self.config.sequence_length))

    @cached_property
    def heldout(self) -> int:
        """Sequences held out, of each source a share."""
        split = (CalibrationBlocks.split(torch.empty(count)) for count, _ in self.sources)
        return sum(len(blocks.heldout) for blocks in split)

    @property
    def train(self) -> int:
        """Sequences to learn from."""
        return self.config.sequences - self.heldout

    @property
    def scored(self) -> int:
        """Sequences that a round reads."""
        return min(self.train, self.config.sequences_of("criterion"))

    @property
    def refits(self) -> int:
        """Rounds that refit columns: without learning the last leaves that to what follows."""
        config = self.config
        if not (config.compensation and config.cuts_in_rounds):
            return 0
        return config.rounds if config.learns else config.rounds - 1

    @property
    def fitted(self) -> int:
        """Sequences that the last refit reads."""
        return min(self.train, self.config.sequences_of("compensation"))

    def each(self, count: int) -> int:
        """The most that one process has of so many."""
        return -(-count // self.processes)


def case_of(config: CompressConfig, shape: ModelShape, on_gpu: bool) -> tuple[Case, ModelShape]:
    """A config on one process, and the shape under its budget, by a mask in the order of ties.

    Raises InputError for a budget that the model cannot have.
    """
    budget = budget_for(config, shape, torch.device("cpu"))
    mask = project(torch.zeros_like(budget.costs), budget)
    pruned = replace(shape, layers=pruned_layers(shape, budget.units.kept_per_layer(mask)))
    dense = Case(shape, config, on_gpu)
    width = shape.head_dim
    kept = sum(x.intermediate_size + x.num_attention_heads * width for x in pruned.layers)
    return replace(dense, keep=kept * shape.hidden_size / dense.output_values), pruned
