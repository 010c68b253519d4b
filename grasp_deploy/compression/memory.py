"""What a compression takes, by its stages: peak memory, predicted from config.json, and passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.plan import pruned_layers
from grasp_deploy.checkpoint.read.loading import wanted_dtype
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.compression.own_text import rows_at_once
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import calibration_sources
from grasp_deploy.data.mixture import shares
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.schedule import HELDOUT_CHECKS, CalibrationBlocks

Terms = dict[str, int]  # bytes by what takes them
PROCESS_BYTES = 525 * 2**20  # interpreter and libraries of a process, measured on a CPU


class Sequences(NamedTuple):
    """How many sequences there are, and how many a round and the last refit read."""

    own: int  # written by the model itself
    heldout: int
    train: int
    scored: int
    fitted: int


def sequences_of(config: CompressConfig) -> Sequences:
    """Count the sequences of a run; raises InputError for sources that cannot be."""
    given = config.calibration, config.calibration_split, config.calibration_column
    sources = calibration_sources(*given)
    counts = shares([source.weight for source in sources], config.sequences)
    own = sum(count for count, source in zip(counts, sources, strict=True) if source.is_own)
    heldout = sum(len(CalibrationBlocks.split(torch.empty(count)).heldout) for count in counts)
    train = config.sequences - heldout
    read = (min(train, config.sequences_of(s)) for s in ("criterion", "compensation"))
    return Sequences(own, heldout, train, *read)


def passes_of(config: CompressConfig) -> dict[str, int]:
    """Forward passes of a sequence by stage, for one budget; a backward pass counts as another.

    A refit takes three of each layer, a criterion one beside its gradients.
    """
    n, refits = sequences_of(config), config.compensation
    # Of a budget that is no share of the cost all: only its model tells what it removes.
    rounds = config.rounds_for(1 - (config.keep or 0)) if config.cuts_in_rounds else 1
    gates = min(n.train, config.sequences_of("gate")) if config.learns else 0
    scales = config.scale_epochs * n.train
    step, checks = 2 + config.gradient_checkpointing, n.heldout * (HELDOUT_CHECKS + 1)
    scored = 3 * n.scored * rounds
    found = {
        "own-text": n.own,
        "rounds" if config.cuts_in_rounds else "criterion": scored * (1 + refits),
        "gates": gates and gates * step + checks,
        "compensation": (3 * n.fitted + 2 * n.heldout) * refits,
        "scales": scales and scales * step + checks,
    }
    return {stage: passes for stage, passes in found.items() if passes}


def summed_of(passes: dict[str, int]) -> int:
    """Sequences of whose inputs `obs` and refits sum up products: one for three of their passes."""
    return sum(passes.get(stage, 0) for stage in ("rounds", "criterion", "compensation")) // 3


@dataclass(frozen=True)
class Way:
    """One way to run a compression, and the bytes that it takes.

    Kernels' workspaces, and what an allocator loses between tensors, are not counted.
    """

    config: CompressConfig
    shape: ModelShape
    kept_values: int  # weights of the output projections' columns that stay
    on_gpu: bool
    processes: int = 1
    offload: bool = False  # weights wait in the CPU's memory

    @classmethod
    def of(cls, config: CompressConfig, shape: ModelShape, on_gpu: bool) -> Way:
        """One process; columns stay as by a mask in the order of ties.

        Raises InputError for a budget that the model cannot have.
        """
        budget = budget_for(config, shape, torch.device("cpu"))
        kept = budget.units.kept_per_layer(project(torch.zeros_like(budget.costs), budget))
        pruned = replace(shape, layers=pruned_layers(shape, kept))
        return cls(config, shape, _output_values(pruned), on_gpu)

    @cached_property
    def dtype(self) -> torch.dtype:
        """In which the model is computed."""
        device = torch.device("cuda" if self.on_gpu else "cpu")
        return wanted_dtype(self.shape.dtype, device, self.config.dtype)

    @property
    def device_bytes(self) -> int:
        """The most that a process holds in a stage: on its GPU, or else in the CPU's memory."""
        return max((sum(terms.values()) for terms in self.stages.values()), default=0)

    @property
    def machine_bytes(self) -> int:
        """The CPU's memory for all processes, in a stage or while refitted columns are saved.

        Then they are there as they are, and scaled in float32; the first of several has all rows.
        """
        refits, width, n = self.config.compensation, self.dtype.itemsize, self.processes
        dense = _output_values(self.shape) * width * refits  # for a refit to begin from
        saved = self.kept_values * (width + (4 if n == 1 else 8)) * refits
        if self.offload or not self.on_gpu:
            saved += n * self._weight_bytes
        in_stage = 0 if self.on_gpu else n * self.device_bytes
        return n * PROCESS_BYTES + dense + max(saved, in_stage)

    @cached_property
    def stages(self) -> dict[str, Terms]:
        """What takes how much of a process's device at the peak of each stage."""
        config, n, width = self.config, sequences_of(self.config), self.dtype.itemsize
        length = config.sequence_length
        rows = self._each(min(n.own, rows_at_once(self.shape, length)))
        writing = {
            "gathered weights": 2 * max(self._gathered),  # also as they arrive
            "KV cache of own text": rows * length * self.shape.kv_bytes_per_token(width),
            "logits": rows * self.shape.vocab_size * (width + 16),  # and chances
        }
        # Of a channel the product of its gradients, of a KV group (G·D)²; in float64.
        square = (self.shape.query_heads_per_group * self.shape.head_dim) ** 2
        per_unit = [x.intermediate_size + x.num_key_value_heads * square for x in self.shape.layers]
        moments = {"gradient moments": 8 * sum(per_unit)}
        step = self._step(self._each(config.batch_size))
        scoring = self._layerwise(n.scored, refits=False)
        rounds = [self._step(config.batch_size) | moments, scoring | moments]
        rounds += [self._layerwise(n.scored, refits=True)] * config.compensation
        largest = max(rounds, key=lambda terms: sum(terms.values()))
        last = self._layerwise(n.fitted, refits=True)
        peaks = {"own-text": writing, "rounds": largest, "criterion": largest}
        peaks |= {"gates": step, "compensation": last, "scales": step}
        weights = {} if self.offload else {"weights": self._weight_bytes}
        return {stage: weights | peaks[stage] for stage in passes_of(config)}

    def _each(self, count: int) -> int:
        """The most that one process has of so many."""
        return -(-count // self.processes)

    @property
    def _weight_bytes(self) -> int:
        """A process's part; FSDP2 has embeddings and head apart."""
        apart = self._gathered[1] if self.shape.tied_embeddings else 0
        return self._each(self.shape.parameters * self.dtype.itemsize + apart)

    @cached_property
    def columns(self) -> tuple[int, int]:
        """Inputs of `down_proj` and `o_proj` in the widest layer."""
        layers = self.shape.layers
        heads = max(layer.num_attention_heads for layer in layers)
        return max(layer.intermediate_size for layer in layers), heads * self.shape.head_dim

    @property
    def _gathered(self) -> tuple[int, int]:
        """Bytes of an MLP and of the head, which FSDP2 gathers when they are called."""
        is_divided = self.processes > 1 or self.offload
        row = self.shape.hidden_size * self.dtype.itemsize * is_divided
        return 3 * self.columns[0] * row, self.shape.vocab_size * row

    def _step(self, sequences: int) -> Terms:
        """What a forward pass under gates keeps for the backward one, and the head beside it.

        The loss takes three float32 values of a logit: its log-softmax and two gradients.
        """
        shape, width, (channels, queries) = self.shape, self.dtype.itemsize, self.columns
        d, layers, tokens = shape.hidden_size, shape.layers, self.config.sequence_length * sequences
        attention = queries + queries // shape.query_heads_per_group
        per_layer = (
            8 * d  # both norms take a float32 input
            + 2 * d * width * self.config.norm_scales
            + 2 * attention * width  # queries, keys, values, attention's output
            + 4 * queries // shape.head_dim  # log of its sums
            + 4 * channels * width  # gate, its SiLU, up; the product
            + 4 * attention * shape.family.qk_norm
        )
        kept = len(layers) * per_layer
        if self.config.gradient_checkpointing:
            kept = per_layer + len(layers) * d * width
        logits, (mlp, head) = tokens * shape.vocab_size, self._gathered
        units = sum(x.intermediate_size + x.num_key_value_heads for x in layers)
        return {
            "activations of a step": (kept + 4 * d) * tokens,
            "head, logits and loss": max(2 * head + width * logits, 12 * logits, 2 * mlp),
            "scores and their optimiser": 8 * 4 * (units + (2 * len(layers) + 1) * d),
        }

    def _layerwise(self, sequences: int, *, refits: bool) -> Terms:
        """A layer held for all sequences, their hidden states, and float64 matrices.

        Those are of `k x k`, `k` the wider of the layer's two inputs. `obs` and least squares have
        four: the sums, what is solved, the solution, and the solver's copy. Of three processes one
        has another layer waiting. A refit has the products of all rows, and target and solution of
        those of a process.
        """
        d, k, width = self.shape.hidden_size, max(self.columns), self.dtype.itemsize
        tokens, rows = self._each(sequences) * self.config.sequence_length, self._each(d)
        matrices = 4 if refits or self.processes < 3 else 5
        products = k * (8 * (d + 2 * rows) + rows * width)
        return {
            "gathered weights": self._gathered[0],
            "hidden states": tokens * d * width * (1 + refits),
            "float64 matrices": matrices * 8 * k**2 + products * refits,
        }


def _output_values(shape: ModelShape) -> int:
    """Weights of all output projections, which alone are refitted."""
    inputs = (x.intermediate_size + x.num_attention_heads * shape.head_dim for x in shape.layers)
    return sum(inputs) * shape.hidden_size
