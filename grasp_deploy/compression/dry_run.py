"""`compress --dry-run`: memory by stage, the fewest processes that do, and the time on one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape
from grasp_deploy.checkpoint.limits import check_positions
from grasp_deploy.checkpoint.read.loading import class_config, resolve_device
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.checkpoint.read.validate import config_and_shape, refuse_quantised
from grasp_deploy.compression.memory import Way, passes_of, sequences_of, summed_of
from grasp_deploy.compression.prepare import check_own_text
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import format_bytes, parse_bytes
from grasp_deploy.pruning.objective import language_loss
from grasp_deploy.pruning.training import freeze

PROCESSES = (2, 4, 8, 16)
USABLE_SHARE = 0.9  # of a memory; the rest is for kernels, the driver, and lost between tensors
TIMED_BYTES = 2**30  # of layers: those of a larger model stand for the others


@dataclass(frozen=True)
class DryRun:
    """A compression on 1 to 16 processes, judged before a weight is loaded."""

    memory_bytes: int  # of a GPU, or of this machine if it computes on the CPU
    ways: tuple[Way, ...]
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
        starts = [_start(way) for way in fitting[: 1 + fitting[0].offload]]
        return f"It fits into {memory} {', or '.join(starts)}."

    def as_dict(self) -> dict[str, Any]:
        """The record: sizes are whole bytes."""
        names = ("processes", "offload", "device_bytes", "machine_bytes", "stages")
        return {
            "memory_bytes": self.memory_bytes,
            "verdict": self.verdict,
            "forward_passes": passes_of(self.ways[0].config),
            "seconds": self.seconds,
            "ways": [{n: getattr(w, n) for n in names} | {"fits": self.fits(w)} for w in self.ways],
        }


def dry_run(config: CompressConfig, gpu_memory: str | None = None) -> DryRun:
    """Predict before a weight is loaded; `gpu_memory` is that of a GPU that need not be here.

    Raises InputError for several budgets, and for a model or a budget that cannot be.
    """
    if config.walks:
        raise InputError(
            "--dry-run predicts one budget: give one --keep, without a bound on the loss"
        )
    stated, shape = config_and_shape(resolve_config(config.model, config.revision))
    refuse_quantised(shape)
    check_positions(config.sequence_length, stated, "--sequence-length")
    n = sequences_of(config)
    check_own_text(config, n.own)
    asked = parse_bytes(gpu_memory, "--gpu-memory") if gpu_memory else None
    has_none = asked is not None and not torch.cuda.is_available()
    device = resolve_device("cpu" if has_none else config.device)
    one = Way.of(config, shape, on_gpu=asked is not None or device.type == "cuda")
    memory = asked or (
        torch.cuda.get_device_properties(device).total_memory
        if device.type == "cuda"
        else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    is_here = one.on_gpu == (device.type == "cuda")
    seconds = seconds_on(device, one, stated) if is_here else None
    return DryRun(memory, ways_of(one, min(n.scored, n.fitted)), seconds)


def ways_of(one: Way, most: int) -> tuple[Way, ...]:
    """One process, on a GPU also with weights that wait on the CPU, then several, `most` at most.

    One alone for a method of the user's, which reads whole weights.
    """
    if not one.config.cuts_in_rounds:
        return (one,)
    waiting = (replace(one, offload=True),) if one.on_gpu else ()
    return (one, *waiting, *(replace(one, processes=n) for n in PROCESSES if n <= most))


def _start(way: Way) -> str:
    if way.offload:
        memory = format_bytes(way.machine_bytes, 0)
        return f"with weights in the CPU's memory, {memory} of it, which is slow"
    several = f"{way.processes} processes (torchrun --nproc-per-node {way.processes})"
    return f"on {'one process' if way.processes == 1 else several}"


def seconds_on(device: torch.device, way: Way, stated: dict[str, Any]) -> float:
    """Seconds of one process, from a forward and backward pass by random weights.

    Beside it stand the float32 sums of its inputs for least squares. Of a large model some layers
    are measured, and the others go by their weights.
    """
    config, shape, passes = way.config, way.shape, passes_of(way.config)
    layers = max(1, TIMED_BYTES // (shape.layer_parameters(0) * way.dtype.itemsize))
    part = {**stated, "num_hidden_layers": min(layers, len(shape.layers)), "layer_types": None}
    rows, tokens = config.batch_size, config.sequence_length
    with device:
        model = AutoModelForCausalLM.from_config(
            class_config(part), dtype=way.dtype, attn_implementation=config.attention
        )
        ids = torch.zeros(rows, tokens, dtype=torch.int64)
        inputs = [torch.ones(tokens, columns) for columns in way.columns]
    freeze(model, config.gradient_checkpointing)
    model.get_input_embeddings().register_forward_hook(lambda *made: made[-1].requires_grad_())
    step = _seconds(device, lambda: language_loss(model, ids).backward())
    step *= _multiplied(shape) / _multiplied(model_shape(part))
    sums = len(shape.layers) * _seconds(device, lambda: [x.T @ x for x in inputs])
    each = step / rows / (2 + config.gradient_checkpointing)
    return sum(passes.values()) * each + summed_of(passes) * sums


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    for _ in range(2):  # the first one also starts the libraries
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _multiplied(shape: ModelShape) -> int:
    """Weights that each token is multiplied by: all but untied embeddings."""
    return shape.parameters - (not shape.tied_embeddings) * shape.vocab_size * shape.hidden_size
