"""`--dry-run` of `compress` and `heal`: memory by stage, the fewest processes, the time on one.

Nothing is loaded but config.json.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape
from grasp_deploy.checkpoint.limits import check_positions
from grasp_deploy.checkpoint.plan import Plan, check_layers, pruned_shape
from grasp_deploy.checkpoint.read.loading import building, model_of, resolve_device
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.checkpoint.read.validate import config_and_shape, refuse_quantised
from grasp_deploy.compression.budget_options import budget_for, shape_within
from grasp_deploy.compression.own_function import METHOD_CALL, own_function
from grasp_deploy.compression.own_text import rows_at_once
from grasp_deploy.compression.stage_memory import Way
from grasp_deploy.compression.stages import (
    MORE_TEXT,
    OWN_TEXT,
    of_recovery,
    passes_of,
    sequences_of,
)
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import assigned
from grasp_deploy.errors import InputError
from grasp_deploy.files.memory import memory_bytes
from grasp_deploy.files.sizes import format_bytes, parse_bytes
from grasp_deploy.pruning.objective import language_loss
from grasp_deploy.pruning.training import freeze

PROCESSES = (2, 4, 8, 16)
USABLE_SHARE = 0.9  # of a memory; the rest is for kernels, the driver and fragmentation
TIMED_BYTES = 2**30  # of layers that are timed; in a larger model they stand for the others


@dataclass(frozen=True)
class DryRun:
    """A compression on 1 to 16 processes, judged before a weight is loaded."""

    memory_bytes: int  # of a GPU, or of this machine or container if it computes on the CPU
    ways: tuple[Way, ...]
    passes: dict[str, int]  # by stage
    timed: Callable[[], float] | None  # None for a GPU that is not here

    @cached_property
    def seconds(self) -> float | None:
        """Seconds on one process, by passes measured at the first call; it may take minutes."""
        return None if self.timed is None else round(self.timed(), 1)

    def fits(self, way: Way) -> bool:
        """True if the memory holds it, with a tenth to spare."""
        needed = way.device_bytes if way.on_gpu else way.machine_bytes
        return needed <= USABLE_SHARE * self.memory_bytes

    @property
    def verdict(self) -> str:
        """What to start, in one sentence."""
        memory = format_bytes(self.memory_bytes)
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


def dry_run(
    config: CompressConfig, gpu_memory: str | None = None, plan: Plan | None = None
) -> DryRun:
    """Predict before a weight is loaded; `gpu_memory` is that of a GPU that need not be here.

    With the `plan` of a checkpoint that is there, its recovery is predicted. Of several budgets the
    largest takes the most memory, and all take time. Raises InputError for a bound on the loss
    alone, for a model or a budget that cannot be, and for one that the plan was not made for.
    """
    members = [replace(config, keep=keep, family=()) for keep in config.family] or [config]
    config = members[0]
    if config.walks:
        raise InputError(
            "--dry-run predicts budgets that are given, and a bound on the loss tries as many as "
            "it needs: give --keep"
        )
    if not config.cuts_in_rounds:
        own_function(assigned(config, "method"), METHOD_CALL)
    stated, shape = config_and_shape(resolve_config(config.model, config.revision))
    refuse_quantised(shape)
    check_positions(config.sequence_length, stated, "--sequence-length")
    n = sequences_of(config)
    asked = parse_bytes(gpu_memory, "--gpu-memory") if gpu_memory else None
    has_none = asked is not None and not torch.cuda.is_available()
    device = resolve_device("cpu" if has_none else config.device)
    budgets = [budget_for(member, shape, torch.device("cpu")) for member in members]
    if plan is not None:
        check_layers(plan, shape)
    pruned = shape_within(budgets[0], shape) if plan is None else pruned_shape(plan, shape)
    on_gpu = asked is not None or device.type == "cuda"
    one = Way(config, shape, pruned, on_gpu, recovers=plan is not None)
    memory = asked or (
        torch.cuda.get_device_properties(device).total_memory
        if device.type == "cuda"
        else memory_bytes()
    )
    ways = [one]
    # A method of the user's reads whole weights, and so do experts.
    if config.cuts_in_rounds and not shape.experts_per_token:
        may_offload = one.on_gpu and config.recover is None  # weights that learn never wait
        ways += [replace(one, offload=True)] if may_offload else []
        most = min(n.scored, n.fitted)
        ways += [replace(one, processes=count) for count in PROCESSES if count <= most]
    at_once = rows_at_once(shape, config.sequence_length, on_gpu=one.on_gpu)
    shares = [budget.limit / budget.total_cost for budget in budgets]
    passes = passes_of(config, shares[0], at_once=at_once)
    if plan is not None:
        passes = of_recovery(passes)
    # The first run's own text is not written again.
    for member, (larger, kept) in zip(members[1:], pairwise(shares), strict=True):
        for stage, count in passes_of(member, kept, larger, at_once).items():
            passes[stage] = passes.get(stage, 0) + count * (stage not in (OWN_TEXT, MORE_TEXT))
    is_here = one.on_gpu == (device.type == "cuda")
    timed = partial(seconds_of, one, sum(passes.values()), stated, device) if is_here else None
    return DryRun(memory, tuple(ways), passes, timed)


def seconds_of(way: Way, passes: int, stated: dict[str, Any], device: torch.device) -> float:
    """Seconds that all passes take one process, from the fastest of four with random weights.

    Of a large model only some layers are timed. The others count in proportion to their weights.
    """
    config, shape = way.config, way.shape
    layers = max(1, TIMED_BYTES // (shape.layer_parameters[0] * way.dtype.itemsize))
    kinds = stated.get("layer_types") or []
    if shape.family.is_hybrid:  # up to the first layer with plain attention at least
        layers = max(layers, 1 + kinds.index("full_attention"))
    layers = min(layers, len(shape.layers))
    part = {**stated, "num_hidden_layers": layers, "layer_types": kinds[:layers] or None}
    with device, building(Path(config.model)):
        model = model_of(part, way.dtype)
        ids = torch.zeros(config.batch_size, config.sequence_length, dtype=torch.int64)
    freeze(model, config.gradient_checkpointing)
    model.get_input_embeddings().register_forward_hook(lambda *made: made[-1].requires_grad_())
    steps = []
    for _ in range(4):  # the first one also starts the libraries, and others may be held up
        began = time.perf_counter()
        language_loss(model, ids).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        steps.append(time.perf_counter() - began)
    step = min(steps) * multiplied(shape) / multiplied(model_shape(part))
    each = step / config.batch_size / (2 + config.gradient_checkpointing)
    return passes * each


def multiplied(shape: ModelShape) -> int:
    """Weights that each token is multiplied by: no untied embeddings, and the experts it takes."""
    embeddings = (not shape.tied_embeddings) * shape.vocab_size * shape.hidden_size
    taken = shape.experts_per_token
    idle = sum(layer.ffn_units - taken for layer in shape.layers) if taken else 0
    return shape.parameters - embeddings - idle * shape.ffn_parameters
