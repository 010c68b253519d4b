"""`compress --dry-run`: memory by stage, the fewest processes that do, and the time on one.

Memory is predicted from config.json. Kernels' workspaces, and what an allocator loses between
tensors, are not counted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.limits import check_positions
from grasp_deploy.checkpoint.read.loading import resolve_device, wanted_dtype
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.checkpoint.read.validate import config_and_shape, refuse_quantised
from grasp_deploy.compression.budget_options import budget_for, shape_within
from grasp_deploy.compression.own_text import rows_at_once
from grasp_deploy.compression.pass_time import seconds_of
from grasp_deploy.compression.recovery import sequences_in_step
from grasp_deploy.compression.stages import MORE_TEXT, OWN_TEXT, RECOVERY, passes_of, sequences_of
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import format_bytes, parse_bytes
from grasp_deploy.pruning.distilling import LOGITS_AT_ONCE
from grasp_deploy.pruning.norms import norms_of

Terms = dict[str, int]  # bytes by what takes them
PROCESS_BYTES = 525 * 2**20  # interpreter and libraries of a process, measured on a CPU
PROCESSES = (2, 4, 8, 16)
USABLE_SHARE = 0.9  # of a memory; the rest is for kernels, the driver, and lost between tensors


@dataclass(frozen=True)
class Way:
    """One way to run a compression, and the bytes that it takes."""

    config: CompressConfig
    shape: ModelShape
    pruned: ModelShape  # as by a mask in the order of ties
    on_gpu: bool
    processes: int = 1
    offload: bool = False  # weights wait in the CPU's memory

    @cached_property
    def dtype(self) -> torch.dtype:
        """In which the model is computed."""
        device = torch.device("cuda" if self.on_gpu else "cpu")
        return wanted_dtype(self.shape.dtype, device, self.config.dtype)

    @property
    def how(self) -> str:
        """How to start it, within a sentence."""
        if self.offload:
            memory = format_bytes(self.machine_bytes, 0)
            return f"with weights in the CPU's memory, {memory} of it, which is slow"
        several = f"{self.processes} processes (torchrun --nproc-per-node {self.processes})"
        return f"on {'one process' if self.processes == 1 else several}"

    @property
    def device_bytes(self) -> int:
        """The most that a process holds in a stage: on its GPU, or else in the CPU's memory."""
        return max((sum(terms.values()) for terms in self.stages.values()), default=0)

    @property
    def machine_bytes(self) -> int:
        """The CPU's memory for all processes, in a stage or while weights are saved.

        Refitted columns are there as they are then, and scaled in float32; the first of several
        processes has all rows.
        """
        refits, width, n = self.config.compensation, self.dtype.itemsize, self.processes
        dense = _output_values(self.shape) * width * refits  # for a refit to begin from
        saved = _output_values(self.pruned) * (width + (4 if n == 1 else 8)) * refits
        if self.offload or not self.on_gpu:
            saved += n * self._weight_bytes
        if self.config.recover is not None:  # the state of learning; the best weights stay there
            saved = max(saved, self._learnt * (3 * 4 + 2 * width))
            dense += self._learnt * width
        in_stage = 0 if self.on_gpu else n * self.device_bytes
        return n * PROCESS_BYTES + dense + max(saved, in_stage)

    @cached_property
    def stages(self) -> dict[str, Terms]:
        """What takes how much of a process's device at the peak of each stage."""
        config, n, width = self.config, sequences_of(self.config), self.dtype.itemsize
        length = config.sequence_length
        own, at_once = max(n.own, n.more_own), rows_at_once(self.shape, length, on_gpu=self.on_gpu)
        rows = self._each(min(own, at_once))
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
        peaks = {OWN_TEXT: writing, "rounds": largest, "criterion": largest}
        peaks |= {"gates": step, "compensation": last, "scales": step}
        peaks |= {MORE_TEXT: writing, RECOVERY: self._recovery}
        weights = {} if self.offload else {"weights": self._weight_bytes}
        return {stage: weights | peaks[stage] for stage in passes_of(config)}

    def _each(self, count: int) -> int:
        """The most that one process has of so many."""
        return -(-count // self.processes)

    @property
    def _recovery(self) -> Terms:
        """A step of the weights that learn, in float32 with two moments.

        Each steps as soon as its gradient is there: those of an MLP are the most at once.
        """
        terms = self._step(self._each(sequences_in_step(self.config)))
        del terms["scores and their optimiser"]
        logits = 5 * 4 * LOGITS_AT_ONCE  # a chunk of both models', their chances, a gradient
        return terms | {
            "gathered weights": 2 * self._gathered[0],
            "head, logits and loss": logits + 2 * self._gathered[1],
            "weights that learn": self._each(3 * 4 * self._learnt),
            "gradients": 2 * 3 * 4 * self._columns[0] * self.shape.hidden_size,
        }

    @property
    def _learnt(self) -> int:
        """Parameters of the pruned model between embeddings and head."""
        return sum(self.pruned.layer_parameters(layer) for layer in range(len(self.pruned.layers)))

    @property
    def _weight_bytes(self) -> int:
        """A process's part; FSDP2 has embeddings and head apart."""
        apart = self._gathered[1] if self.shape.tied_embeddings else 0
        return self._each(self.shape.parameters * self.dtype.itemsize + apart)

    @cached_property
    def _columns(self) -> tuple[int, int]:
        """Inputs of `down_proj` and `o_proj` in the widest layer."""
        layers = self.shape.layers
        heads = max(layer.num_attention_heads for layer in layers)
        widest = max(layer.intermediate_size for layer in layers)
        return widest * max(1, self.shape.experts_per_token), heads * self.shape.head_dim

    @property
    def _gathered(self) -> tuple[int, int]:
        """Bytes of an MLP and of the head, which FSDP2 gathers when they are called."""
        is_divided = self.processes > 1 or self.offload
        row = self.shape.hidden_size * self.dtype.itemsize * is_divided
        return 3 * self._columns[0] * row, self.shape.vocab_size * row

    def _step(self, sequences: int) -> Terms:
        """What a forward pass under gates keeps for the backward one, and the head beside it.

        The loss takes three float32 values of a logit: its log-softmax and two gradients.
        """
        shape, width, (channels, queries) = self.shape, self.dtype.itemsize, self._columns
        d, layers, tokens = shape.hidden_size, shape.layers, self.config.sequence_length * sequences
        attention = queries + queries // shape.query_heads_per_group
        norms = len(norms_of(shape.family.model_type).names)
        per_layer = (
            4 * d * norms  # which take a float32 input
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
        units = sum(x.ffn_units + x.num_key_value_heads for x in layers)
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
        d, k, width = self.shape.hidden_size, max(self._columns), self.dtype.itemsize
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


@dataclass(frozen=True)
class DryRun:
    """A compression on 1 to 16 processes, judged before a weight is loaded."""

    memory_bytes: int  # of a GPU, or of this machine if it computes on the CPU
    ways: tuple[Way, ...]
    passes: dict[str, int]  # by stage
    seconds: float | None  # on one process; None for a GPU that is not here

    def fits(self, way: Way) -> bool:
        """True if the memory holds it, with a tenth to spare."""
        needed = way.device_bytes if way.on_gpu else way.machine_bytes
        return needed <= USABLE_SHARE * self.memory_bytes

    @property
    def verdict(self) -> str:
        """What to start, in one sentence."""
        memory = format_bytes(self.memory_bytes, 0)
        fitting = [way for way in self.ways if self.fits(way)]
        if not fitting:
            return (
                f"Nothing fits into {memory}: take a larger device, a smaller model, or "
                "--gradient-checkpointing."
            )
        starts = [way.how for way in fitting[: 1 + fitting[0].offload]]
        return f"It fits into {memory} {', or '.join(starts)}."

    def as_dict(self) -> dict[str, Any]:
        """The record: sizes are whole bytes."""
        names = ("processes", "offload", "device_bytes", "machine_bytes", "stages")
        return {
            "memory_bytes": self.memory_bytes,
            "verdict": self.verdict,
            "forward_passes": self.passes,
            "seconds": self.seconds,
            "ways": [{n: getattr(w, n) for n in names} | {"fits": self.fits(w)} for w in self.ways],
        }


def dry_run(config: CompressConfig, gpu_memory: str | None = None) -> DryRun:
    """Predict before a weight is loaded; `gpu_memory` is that of a GPU that need not be here.

    Of several budgets the largest takes the most memory, and all take time. Raises InputError for a
    bound on the loss alone, and for a model or a budget that cannot be.
    """
    members = [replace(config, keep=keep, family=()) for keep in config.family] or [config]
    config = members[0]
    if config.walks:
        raise InputError(
            "--dry-run predicts budgets that are given, and a bound on the loss tries as many as "
            "it needs: give --keep"
        )
    stated, shape = config_and_shape(resolve_config(config.model, config.revision))
    refuse_quantised(shape)
    check_positions(config.sequence_length, stated, "--sequence-length")
    n = sequences_of(config)
    asked = parse_bytes(gpu_memory, "--gpu-memory") if gpu_memory else None
    has_none = asked is not None and not torch.cuda.is_available()
    device = resolve_device("cpu" if has_none else config.device)
    budgets = [budget_for(member, shape, torch.device("cpu")) for member in members]
    pruned = shape_within(budgets[0], shape)
    one = Way(config, shape, pruned, on_gpu=asked is not None or device.type == "cuda")
    memory = asked or (
        torch.cuda.get_device_properties(device).total_memory
        if device.type == "cuda"
        else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    is_here = one.on_gpu == (device.type == "cuda")
    ways = [one]
    # A method of the user's reads whole weights, and so do experts.
    if config.cuts_in_rounds and not shape.experts_per_token:
        may_offload = one.on_gpu and config.recover is None  # weights that learn never wait
        ways += [replace(one, offload=True)] if may_offload else []
        most = min(n.scored, n.fitted)
        ways += [replace(one, processes=count) for count in PROCESSES if count <= most]
    passes = passes_of(config)
    for member in members[1:]:  # which read what the first had the model write
        for stage, count in passes_of(member).items():
            passes[stage] = passes.get(stage, 0) + count * (stage != OWN_TEXT)
    return DryRun(
        memory,
        tuple(ways),
        passes,
        seconds_of(config, sum(passes.values()), shape, stated, one.dtype, device)
        if is_here
        else None,
    )
