"""Memory and disk of a compression, term by term, as its stages allocate them at their peaks.

Letters are those of the code: `d` hidden, `F` channels, `V` vocabulary, `T` tokens, `w` bytes of a
weight. Sums for least squares and for `obs` are float64 matrices of `k x k`, `k` the wider of the
two inputs. Kernels' workspaces, and what an allocator loses between tensors, are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.compression.needs.case import Case
from grasp_deploy.compression.needs.phase import Phase, Terms

PROCESS_BYTES = 525 * 2**20  # interpreter and libraries of a process, measured on a CPU
GATHERED, WEIGHTS = "gathered weights", "weights"


@dataclass(frozen=True)
class Needs:
    """What one way to run a compression takes, in bytes."""

    case: Case
    phases: tuple[Phase, ...]
    disk: Terms

    @classmethod
    def of(cls, case: Case, pruned: ModelShape) -> Needs:
        """Predict a case that ends in a checkpoint of the pruned shape."""
        return cls(case, tuple(phases_of(case)), disk_bytes(case, pruned))

    @property
    def device_bytes(self) -> int:
        """The most that the tensors of a process take of its device."""
        return max(phase.device_bytes for phase in self.phases)

    @property
    def resident_bytes(self) -> int:
        """The most that a process other than the lead takes of the CPU's memory."""
        return PROCESS_BYTES + max(self._on_host(phase) for phase in self.phases)

    @property
    def lead_resident_bytes(self) -> int:
        """The same of the lead."""
        most = max(self._on_host(phase) + phase.lead_bytes for phase in self.phases)
        return PROCESS_BYTES + most

    @property
    def machine_bytes(self) -> int:
        """Of the CPU's memory, if all processes run on one machine."""
        return self.lead_resident_bytes + (self.case.processes - 1) * self.resident_bytes

    @property
    def disk_bytes(self) -> int:
        return sum(self.disk.values())

    def _on_host(self, phase: Phase) -> int:
        return phase.host_bytes + (0 if self.case.on_gpu else phase.device_bytes)

    def stages(self) -> list[Phase]:
        """The largest peak of each stage: on a GPU, or of the lead on a CPU."""
        names = dict.fromkeys(phase.stage for phase in self.phases)
        return [max((p for p in self.phases if p.stage == n), key=self.size_of) for n in names]

    def terms_of(self, phase: Phase) -> Terms:
        """The terms on a GPU, or all of the lead on a CPU."""
        return phase.device if self.case.on_gpu else phase.device | phase.host | phase.lead

    def size_of(self, phase: Phase) -> int:
        """Their sum."""
        return sum(self.terms_of(phase).values())


def phases_of(case: Case) -> list[Phase]:
    """The peaks of all stages that the options ask for, in their order."""
    resident: Terms = {} if case.offload else {WEIGHTS: weight_bytes(case)}
    waiting: Terms = {"weights that wait": weight_bytes(case)} if case.offload else {}
    if case.config.compensation:
        waiting["dense output projections"] = case.each(case.output_values) * case.dtype_bytes
    return [
        replace(
            phase,
            device={name: size for name, size in (resident | phase.device).items() if size},
            host={name: size for name, size in (waiting | phase.host).items() if size},
        )
        for phase in _phases(case)
    ]


def _phases(case: Case) -> Iterator[Phase]:
    config = case.config
    if case.own_sequences:
        yield Phase("own text", _writing(case), {}, {})
    if config.first_scores != "equal":
        moments = _moments(case)
        step = _step(case, config.batch_size, gated=False)
        yield Phase("rounds", step | {"gradient moments": moments}, {}, {})
        # The mean moments are made while the sums are there.
        yield Phase("rounds", {"gradient moments": 2 * moments}, {}, {})
        yield Phase("rounds", _scoring(case) | {"gradient moments": moments}, {}, {})
        if case.refits:
            yield Phase("rounds", _refit(case, case.scored), {}, {})
            first = 1 - (1 - case.keep) / config.rounds
            yield Phase("rounds", {}, *_saving(case, first, case.dtype_bytes))
    if config.learns:
        yield Phase("gates", _learning(case, values=case.units), {}, {})
    if config.compensation:
        yield Phase("compensation", _refit(case, case.fitted), {}, {})
        # The best candidate's columns so far, and those of the next.
        columns = case.each(round(case.keep * case.output_values)) * case.dtype_bytes
        host, lead = _saving(case, case.keep, case.dtype_bytes)
        yield Phase("compensation", {}, host | {"a candidate's columns": columns}, lead)
    if config.scale_epochs:
        hidden = (2 * len(case.shape.layers) + 1) * case.shape.hidden_size * config.norm_scales
        yield Phase("scales", _learning(case, values=case.units + hidden), {}, {})
    if config.compensation:
        host, lead = _saving(case, case.keep, 4)
        columns = case.each(round(case.keep * case.output_values)) * case.dtype_bytes
        stage = "scales" if config.scale_epochs else "compensation"  # the result is saved
        yield Phase(stage, {}, host | {"unscaled columns": columns}, lead)


def weight_bytes(case: Case) -> int:
    """Weights of a process: all, or with several its rows of each and all norms."""
    total = 0
    shapes = dict(case.shape.tensor_shapes())
    if case.is_divided:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    for name, size in shapes.items():
        rows = size[0] if name.endswith("norm.weight") and len(size) == 1 else case.each(size[0])
        total += rows * math.prod(size[1:])
    return total * case.dtype_bytes


def _gathered(case: Case, part: str, copies: int = 2) -> int:
    """Weights of an attention, an MLP or the head, as they arrive and as they are used."""
    return copies * case.parts[part] * case.dtype_bytes if case.is_divided else 0


def _writing(case: Case) -> Terms:
    """The cache of all rows of a process, and the logits and chances of one token of each."""
    rows, width = case.each(case.own_rows), case.dtype_bytes
    tokens = rows * case.config.sequence_length
    return {
        GATHERED: max(_gathered(case, part) for part in case.parts),
        "KV cache of own text": tokens * case.shape.kv_bytes_per_token(width),
        "logits": rows * case.shape.vocab_size * (width + 16),
    }


def _step(case: Case, sequences: int, *, gated: bool, norms: bool = False) -> Terms:
    """Activations that a forward pass keeps for the backward one, at the head."""
    config, d, w = case.config, case.shape.hidden_size, case.dtype_bytes
    tokens = sequences * config.sequence_length
    heads = case.queries // case.shape.head_dim
    per_layer = (
        8 * d  # both norms take a float32 input
        + (2 * case.queries + 2 * case.keys) * w  # queries, keys, values, attention's output
        + 4 * heads  # log of its sums
        + (4 if gated else 3) * case.channels * w  # gate, its SiLU, up; the product, where gated
        + (2 * d * w if norms else 0)
    )
    if case.shape.family.qk_norm:
        per_layer += 4 * (case.queries + case.keys)
    layers = len(case.shape.layers)
    kept = per_layer + layers * d * w if config.gradient_checkpointing else layers * per_layer
    return {
        "activations of a step": kept * tokens + 4 * d * tokens,
        **_head(case, tokens * case.shape.vocab_size),
    }


def _head(case: Case, logits: int) -> Terms:
    """The most of three: the head arrives beside its logits, their loss, or an MLP arrives.

    The loss takes three float32 values of a logit: its log-softmax and two gradients.
    """
    peaks = [
        {GATHERED: _gathered(case, "head"), "logits": case.dtype_bytes * logits},
        {GATHERED: 0, "logits": 12 * logits},
        {GATHERED: _gathered(case, "mlp"), "logits": 0},
    ]
    return max(peaks, key=lambda terms: sum(terms.values()))


def _learning(case: Case, values: int) -> Terms:
    """A step, with the values, their gradient and moments, the best ones, and temporary ones."""
    config = case.config
    scales = values != case.units
    step = _step(case, case.each(config.batch_size), gated=True, norms=scales)
    dense = case.output_values * case.dtype_bytes if config.objective == "distillation" else 0
    return step | {"scores and their optimiser": 8 * 4 * values, "dense output projections": dense}


def _moments(case: Case) -> int:
    """Float64 products of gradients: of a channel one, of a KV group `(G·D)²`."""
    width = case.shape.query_heads_per_group * case.shape.head_dim
    return 8 * sum(
        layer.intermediate_size + layer.num_key_value_heads * width**2
        for layer in case.shape.layers
    )


def _layerwise(case: Case, states: int) -> Terms:
    """A layer held for all sequences, and `states` hidden states."""
    hidden = states * case.config.sequence_length * case.shape.hidden_size * case.dtype_bytes
    return {
        GATHERED: _gathered(case, "mlp", 1),
        "hidden states": hidden,
    }


def _scoring(case: Case) -> Terms:
    """`obs` eliminates the units of one layer.

    Four matrices: the sums, the inverse, and what replaces it; of three processes or more a layer
    that waits for the others, too.
    """
    k = max(case.channels, case.queries)
    matrices = 4 if case.processes < 3 else 5
    return _layerwise(case, case.each(case.scored)) | {"float64 matrices": matrices * 8 * k * k}


def _refit(case: Case, sequences: int) -> Terms:
    """Least squares of one layer that keeps all its columns.

    Four matrices: the sums, the regular ones, their factor, and the solver's copy of it. Beside
    them the cross products of all rows, and target and solution of the rows of a process.
    """
    k, d = max(case.channels, case.queries), case.shape.hidden_size
    rows = d + 2 * case.each(d)
    present = case.each(d) * k * case.dtype_bytes
    matrices = 8 * k * (4 * k + rows) + present
    return _layerwise(case, 2 * case.each(sequences)) | {"float64 matrices": matrices}


def _saving(case: Case, keep: float, value_bytes: int) -> tuple[Terms, Terms]:
    """Refitted columns of a process; and on the lead of several those of all."""
    values = round(keep * case.output_values)
    whole, part = values * value_bytes, case.each(values) * value_bytes
    of_all = whole if case.processes > 1 else 0
    return {"refitted columns": part}, {"refitted columns of all rows": of_all}


def disk_bytes(case: Case, pruned: ModelShape) -> Terms:
    """Bytes by file at the end, when all are there: `OUTPUT.partial`, and the checkpoint."""
    config, columns = case.config, round(case.keep * case.output_values)
    terms = {"own text": 8 * case.own_sequences * config.sequence_length}
    if config.compensation:
        kept_twice = case.refits > 0  # by the last round, and by the refit
        terms["refitted columns"] = (1 + kept_twice) * columns * case.dtype_bytes
        terms["refitted and scaled columns"] = 4 * columns
    return {**terms, "checkpoint": pruned.weight_bytes}
