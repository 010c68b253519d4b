"""Time of a compression, from its operations and the rates of this machine's device.

Three rates are measured by products of matrices: in the dtype of the weights, in float32, for the
sums of least squares and `obs`, and in float64, for their solutions. A stage reaches a share of
such a rate.
Gathered weights cross a link of an assumed bandwidth. Hashing and loading the model are left out.
"""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass

import torch

from grasp_deploy.checkpoint.read.dtypes import seconds_of_product
from grasp_deploy.compression.needs.case import Case
from grasp_deploy.pruning.schedule import HELDOUT_CHECKS

# Shares of the rates that stages reach. With these, stages of `benchmarks.ranks_memory` on two CPU
# cores took 0.9 (scales), 1.1 (compensation) and 1.6 (rounds) times the predicted time.
EFFICIENCY, FLOAT64_EFFICIENCY = 0.5, 0.5
GPU_LINK, CPU_LINK = 25e9, 1e9  # assumed bytes a second of gathered weights: PCIe, gloo
ROUND_SECONDS = 0.3  # of a measurement


@dataclass(frozen=True)
class Rates:
    """Operations a second of one device; of a CPU, by so many threads of its cores."""

    device: str
    flops: float
    float32_flops: float
    float64_flops: float
    threads: int
    cores: int

    def crowding(self, processes: int) -> float:
        """How many times longer a process takes, where others share its cores."""
        if self.device == "cuda":
            return 1.0
        return processes / min(processes, max(1, self.cores // self.threads))


@dataclass(frozen=True)
class Work:
    """What a process does in a stage: operations by dtype, and bytes of gathered weights."""

    flops: float = 0.0
    float32_flops: float = 0.0
    float64_flops: float = 0.0
    gathered_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.float32_flops + other.float32_flops,
            self.float64_flops + other.float64_flops,
            self.gathered_bytes + other.gathered_bytes,
        )

    def __mul__(self, times: float) -> Work:
        return Work(*(value * times for value in astuple(self)))


def measured_rates(dtype: torch.dtype, device: torch.device) -> Rates:
    """Rates of a device, each by products of matrices for a fraction of a second."""
    size = 4096 if device.type == "cuda" else 1024
    own, single, double = (
        2 * size**3 * _products_per_second(size, each, device)
        for each in (dtype, torch.float32, torch.float64)
    )
    cores = len(os.sched_getaffinity(0))
    return Rates(device.type, own, single, double, torch.get_num_threads(), cores)


def _products_per_second(size: int, dtype: torch.dtype, device: torch.device) -> float:
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    seconds_of_product(matrix)  # the first one also starts the libraries
    count, seconds = 0, 0.0
    while seconds < ROUND_SECONDS:
        seconds += seconds_of_product(matrix)
        count += 1
    return count / seconds


def work_of(case: Case) -> dict[str, Work]:
    """The work of a process in each stage that the options ask for."""
    config, stages = case.config, {}
    if case.own_sequences:
        steps = -(-case.own_sequences // case.own_rows) * config.sequence_length
        stages["own text"] = _passes(case, case.each(case.own_sequences), steps)
    if config.first_scores != "equal":
        rounds = config.rounds if config.cuts_in_rounds else 1
        share = (1 + case.keep) / 2  # of the columns, on average of the rounds
        scoring = _batches(case, case.scored, 2) + _scoring(case, share)
        stages["rounds"] = scoring * rounds + _refit(case, case.scored, share) * case.refits
    check = _batches(case, case.heldout, 1)
    checks = check * (HELDOUT_CHECKS + 1)
    if config.learns:
        sequences = min(case.train, config.sequences_of("gate"))
        stages["gates"] = _learning(case, config.epochs * sequences) + checks
    if config.compensation:
        stages["compensation"] = _refit(case, case.fitted, case.keep) + check * 2
    if config.scale_epochs:
        stages["scales"] = _learning(case, config.scale_epochs * case.train) + checks
    return stages


def _passes(case: Case, sequences: int, gathers: int) -> Work:
    """Forward passes of so many sequences of a process, for which all weights are gathered."""
    layers, tokens = len(case.shape.layers), sequences * case.config.sequence_length
    weights = layers * (case.parts["self_attn"] + case.parts["mlp"]) + case.parts["head"]
    attention = 2 * case.config.sequence_length * case.queries * layers  # causal: half of all pairs
    elsewhere = 1.0 if case.offload else 1 - 1 / case.processes  # share that a process lacks
    gathered = gathers * elsewhere * weights * case.dtype_bytes
    return Work(tokens * (2 * weights + attention), gathered_bytes=gathered)


def _batches(case: Case, sequences: int, passes: int) -> Work:
    """Batches for each process: passes forward, or as much of them backward."""
    size = case.config.batch_size
    steps = -(-sequences // (size * case.processes))
    return _passes(case, steps * size * passes, steps * passes)


def _learning(case: Case, sequences: int) -> Work:
    """Steps forward and backward on batches that processes share; no weight takes a gradient."""
    size, passes = case.config.batch_size, 3 if case.config.gradient_checkpointing else 2
    steps = -(-sequences // size)
    return _passes(case, steps * case.each(size) * passes, steps * passes)


def _scoring(case: Case, share: float) -> Work:
    """Sums of all layers, and their eliminations by turns: inverse, and panels of `obs`."""
    layers, tokens = len(case.shape.layers), case.each(case.scored) * case.config.sequence_length
    widths = (case.channels * share, case.queries * share)
    sums = layers * sum(2 * tokens * k**2 for k in widths)
    solved = [5 / 3 * k**3 for k in widths]
    # With several a turn waits for the MLP that is in it.
    turns = layers * sum(solved) if case.processes == 1 else 2 * layers / case.processes * solved[0]
    return _passes(case, case.each(case.scored), 1) + Work(0, sums, turns)


def _refit(case: Case, sequences: int, share: float) -> Work:
    """Three passes of each layer; sums, a factor, a process's rows of the solution, two errors."""
    d, tokens = case.shape.hidden_size, case.each(sequences) * case.config.sequence_length
    layers, widths = len(case.shape.layers), (case.channels * share, case.queries * share)
    sums = sum(2 * tokens * k * (k + d) for k in widths)
    solved = sum(k**3 / 3 + 6 * k**2 * case.each(d) for k in widths)
    return _passes(case, 3 * case.each(sequences), 1) + Work(0, layers * sums, layers * solved)


def seconds_of(case: Case, rates: Rates) -> dict[str, float]:
    """Seconds of each stage; on a CPU the processes share its cores."""
    link = GPU_LINK if case.on_gpu else CPU_LINK
    crowding = rates.crowding(case.processes)
    return {
        stage: crowding * work.flops / (rates.flops * EFFICIENCY)
        + crowding * work.float32_flops / (rates.float32_flops * EFFICIENCY)
        + crowding * work.float64_flops / (rates.float64_flops * FLOAT64_EFFICIENCY)
        + work.gathered_bytes / link
        for stage, work in work_of(case).items()
    }
