"""The memory that each stage of a compression takes, predicted from config.json.

Kernels' workspaces, and what an allocator loses between tensors, are not counted.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.read.loading import wanted_dtype
from grasp_deploy.compression.own_text import rows_at_once
from grasp_deploy.compression.recovery import sequences_in_step
from grasp_deploy.compression.stages import (
    MORE_TEXT,
    OWN_METHOD,
    OWN_TEXT,
    PREDICTIONS,
    RECOVERY,
    of_recovery,
    passes_of,
    sequences_of,
)
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.sizes import format_bytes
from grasp_deploy.pruning.distilling import LOGITS_AT_ONCE, LOGITS_ON_GPU
from grasp_deploy.pruning.norms import norms_of

Terms = dict[str, int]  # bytes by what takes them
READING_BYTES = 1_400  # for each token of text that recovery reads; SmolLM2 took 1.4 to 1.6 kB
PROCESS_BYTES = 525 * 2**20  # interpreter and libraries of a process, measured on a CPU


@dataclass(frozen=True)
class Way:
    """One way to run a compression, and the bytes that it takes."""

    config: CompressConfig
    shape: ModelShape
    pruned: ModelShape  # as by a mask in the order of ties
    on_gpu: bool
    processes: int = 1
    offload: bool = False  # weights wait in the CPU's memory
    divided: bool = False  # FSDP2 divides the weights, though it may be among one process
    recovers: bool = False  # a checkpoint that is there: `pruned` is its shape

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype in which the model is computed."""
        device = torch.device("cuda" if self.on_gpu else "cpu")
        return wanted_dtype(self.shape.dtype, device, self.config.dtype)

    @property
    def passes(self) -> dict[str, int]:
        """Forward passes by stage, for a budget that is not known."""
        passes = passes_of(self.config)
        return of_recovery(passes) if self.recovers else passes

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

        Refitted columns are then there in the model's dtype and, scaled, in float32; the first of
        several processes has all rows.
        """
        refits, width = self.config.compensation and not self.recovers, self.dtype.itemsize
        n = self.processes
        dense = output_values(self.shape) * width * refits  # for a refit to begin from
        saved = output_values(self.pruned) * (width + (4 if n == 1 else 8)) * refits
        if self.offload or not self.on_gpu:
            saved += n * self._weight_bytes
        if self.config.recover is not None:  # the best weights so far stay there
            learnt = sum(self.pruned.layer_parameters)
            state, best = 3 * 4 * learnt, learnt * self.shape.bytes_per_parameter
            # Measured: exact and rounded weights. Saved: a copy of the state, or all at the lead.
            more = max(4 * learnt + best, state * self.on_gpu, (state + best) * (n > 1))
            divided = n * replace(self, divided=True)._weight_bytes
            here = 0 if self.on_gpu else n * self._weight_bytes  # of what other stages left behind
            saved = max(saved, more + (0 if self.on_gpu else state + divided))
            saved = max(saved, here + READING_BYTES * self._given_tokens)
            dense += best
        in_stage = n * self.device_bytes
        if self.on_gpu:  # the dense model's hidden states are read while the columns wait
            in_stage = self._state_bytes + output_values(self.pruned) * width * refits
            in_stage += n * self._weight_bytes * self.offload
        return n * PROCESS_BYTES + dense + max(saved, in_stage)

    @cached_property
    def stages(self) -> dict[str, Terms]:
        """The peak of each stage on a process's device, in bytes by what takes them."""
        config, n, width = self.config, sequences_of(self.config), self.dtype.itemsize
        length = config.sequence_length
        own, at_once = max(n.own, n.more_own), rows_at_once(self.shape, length, on_gpu=self.on_gpu)
        rows = self._each(min(own, at_once))
        row = length * self.shape.kv_bytes_per_token(width) + self.shape.state_bytes_per_sequence
        writing = {
            "gathered weights": 2 * max(self._gathered),  # also as they arrive
            "KV cache of own text": rows * row,
            "logits": rows * self.shape.vocab_size * (width + 16),  # and chances
        }
        # Of a channel the product of its gradients, of a KV group (G·D)²; in float64.
        square = (self.shape.query_heads_per_group * self.shape.head_dim) ** 2
        per_unit = [x.intermediate_size + x.num_key_value_heads * square for x in self.shape.layers]
        moments = {"gradient moments": 8 * sum(per_unit)}
        share = self._each(config.batch_size)
        gates, scales = (self._step(share, scores_learn=learn) for learn in (True, False))
        scoring = self._layerwise(n.scored, refits=False)
        rounds = [self._step(config.batch_size) | moments, scoring | moments]
        rounds += [self._layerwise(n.scored, refits=True)] * config.compensation
        largest = max(rounds, key=lambda terms: sum(terms.values()))
        last = self._layerwise(n.fitted, refits=True)
        peaks: dict[str, Terms] = {OWN_TEXT: writing, "rounds": largest, OWN_METHOD: {}}
        gathered = {"gathered weights": 2 * max(self._gathered)}
        # Processes share a batch, the first of them the most.
        mine = -(-self._state_bytes * share // config.batch_size)
        states = {} if self.on_gpu else {"dense model's hidden states": mine}
        if config.objective == "dense":
            gates, scales = (t | self._head_of_divergence(share) | states for t in (gates, scales))
        peaks |= {PREDICTIONS: gathered | states, "gates": gates}
        peaks |= {"compensation": last | states, "scales": scales}
        peaks |= {MORE_TEXT: writing, RECOVERY: replace(self, divided=True)._recovery}
        weights = {} if self.offload else {"weights": self._weight_bytes}
        return {stage: weights | peaks[stage] for stage in self.passes}

    def _each(self, count: int) -> int:
        """The largest share that a process has of so many."""
        return -(-count // self.processes)

    @property
    def _recovery(self) -> Terms:
        """The peak of a recovery's step, whose weights are in float32 with two moments.

        A weight steps once its gradient is there, so those of an MLP are the most at once.
        """
        terms = self._step(self._each(sequences_in_step(self.config)))
        del terms["scores and their optimiser"]
        return terms | {
            "weights": self._weight_bytes,
            "gathered weights": 2 * self._gathered[0],
            **self._head_of_divergence(self._each(sequences_in_step(self.config))),
            "weights that learn": self._each(3 * 4 * sum(self.pruned.layer_parameters)),
            "gradients": 2 * 3 * 4 * self._columns[0] * self.shape.hidden_size,
        }

    def _head_of_divergence(self, sequences: int) -> Terms:
        """A chunk of both models' logits, their chances and a gradient, in float32."""
        of_all = sequences * self.config.sequence_length * self.shape.vocab_size
        logits = min(of_all, LOGITS_ON_GPU if self.on_gpu else LOGITS_AT_ONCE)
        mlp, head = self._gathered
        return {"head, logits and loss": max(5 * 4 * logits + 2 * head, 2 * mlp)}

    @property
    def _state_bytes(self) -> int:
        """The dense model's hidden states on the CPU, of all processes."""
        n, config = sequences_of(self.config), self.config
        rows = min(n.train + n.heldout, self.passes.get(PREDICTIONS, 0))
        return rows * config.sequence_length * self.shape.hidden_size * self.dtype.itemsize

    @property
    def _given_tokens(self) -> int:
        """Tokens of given text that a recovery reads at once, from its start."""
        n = sequences_of(self.config)
        return max(0, n.recovered - n.own - n.more_own) * self.config.sequence_length

    @property
    def _weight_bytes(self) -> int:
        """Bytes of a process's part of the weights; FSDP2 does not tie embeddings and head."""
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
        is_divided = self.processes > 1 or self.offload or self.divided
        row = self.shape.hidden_size * self.dtype.itemsize * is_divided
        return 3 * self._columns[0] * row, self.shape.vocab_size * row

    def _step(self, sequences: int, *, scores_learn: bool = False) -> Terms:
        """What a forward pass under gates keeps for the backward one, and the head beside it.

        The loss takes three float32 values of a logit: its log-softmax and two gradients.
        """
        shape, width = self.shape, self.dtype.itemsize
        d, layers, tokens = shape.hidden_size, shape.layers, self.config.sequence_length * sequences
        per_layer = self._kept_in_layers(scores_learn=scores_learn)
        kept = sum(per_layer)
        if self.config.gradient_checkpointing:
            kept = max(per_layer) + len(layers) * d * width
        logits, (mlp, head) = tokens * shape.vocab_size, self._gathered
        units = sum(x.ffn_units + x.num_key_value_heads for x in layers)
        return {
            "activations of a step": (kept + 4 * d) * tokens,
            "head, logits and loss": max(2 * head + width * logits, 12 * logits, 2 * mlp),
            "scores and their optimiser": 8 * 4 * (units + (2 * len(layers) + 1) * d),
        }

    def _kept_in_layers(self, *, scores_learn: bool) -> list[int]:
        """Bytes of a token that each layer keeps for the backward pass.

        While scores learn, a token also goes through the experts that it would take of all.
        """
        shape, width, (channels, queries) = self.shape, self.dtype.itemsize, self._columns
        d, k, linear = shape.hidden_size, shape.experts_per_token, shape.linear
        attention = queries + queries // shape.query_heads_per_group
        norms = len(norms_of(shape.family.model_type).names)
        common = 4 * d * norms  # which take a float32 input
        common += 2 * d * width * self.config.norm_scales
        # Gate, its SiLU, up; the product, or of experts each one's output, which its weight scales.
        mlp = 3 * channels + k * d if k else 4 * channels
        common += mlp * width * (1 + scores_learn * (k > 0))
        full = (
            2 * attention * width  # queries, keys, values, attention's output
            + 4 * queries // shape.head_dim  # log of its sums
            + 4 * attention * shape.family.qk_norm
            + 2 * queries * width * shape.family.is_hybrid  # the output's gate, and what it scales
        )
        linears = {} if linear is None else dict.fromkeys(linear.layers, linear.kept_bytes(width))
        return [common + linears.get(layer, full) for layer in range(len(shape.layers))]

    def _layerwise(self, sequences: int, *, refits: bool) -> Terms:
        """The peak of work on one layer for all sequences: hidden states and float64 matrices.

        Those are of `k x k`, `k` the wider of the layer's two inputs. `obs` and least squares have
        four: the sums, what is solved, the solution, and the solver's copy. Several processes score
        only once all have sums: beside those of an MLP lie its attention's, and the latest MLP's. A
        refit has the products of all rows, and target and solution of those of a process. It has
        two hidden states of a token, and behind norms the dense layer's outputs too.
        """
        d, k, width = self.shape.hidden_size, max(self._columns), self.dtype.itemsize
        tokens, rows = self._each(sequences) * self.config.sequence_length, self._each(d)
        waiting = sum(k**2 for k in self._columns) * (self.processes > 1 and not refits)
        behind = norms_of(self.shape.family.model_type).behind
        products = k * (8 * (d + 2 * rows) + rows * width)
        return {
            "gathered weights": self._gathered[0],
            "hidden states": tokens * d * width * (1 + refits * (2 if behind else 1)),
            "float64 matrices": 8 * (4 * k**2 + waiting) + products * refits,
        }


def output_values(shape: ModelShape) -> int:
    """Weights of all output projections, which alone are refitted."""
    inputs = (x.intermediate_size + x.num_attention_heads * shape.head_dim for x in shape.layers)
    return sum(inputs) * shape.hidden_size
