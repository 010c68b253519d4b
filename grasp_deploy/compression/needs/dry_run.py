"""`compress --dry-run`: what a compression needs on 1 to 16 processes, and the least that fits."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import torch

from grasp_deploy.checkpoint.format.shapes import ModelShape, limits_of
from grasp_deploy.checkpoint.read.loading import check_length, resolve_device
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.checkpoint.read.validate import config_and_shape, refuse_quantised
from grasp_deploy.compression.needs.case import Case, case_of
from grasp_deploy.compression.needs.memory import Needs
from grasp_deploy.compression.needs.seconds import Rates, measured_rates, seconds_of
from grasp_deploy.compression.prepare import check_sequences, reads_whole_weights
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import format_bytes, parse_bytes
from grasp_deploy.pruning.ranks import world

PROCESSES = (1, 2, 4, 8, 16)
USABLE_SHARE = 0.9  # of a memory; the rest is for kernels, the driver, and lost between tensors


@dataclass(frozen=True)
class DryRun:
    """A compression on 1 to 16 processes, judged before a weight is loaded."""

    model: str
    memory_bytes: int  # of a GPU, or of this machine if it computes on the CPU
    on_gpu: bool
    ways: tuple[Needs, ...]
    rates: Rates | None  # None for a GPU that is not here

    @property
    def smallest(self) -> Needs | None:
        """The first way that fits; None if none does."""
        return next((way for way in self.ways if self.fits(way)), None)

    def fits(self, way: Needs) -> bool:
        """True if the memory holds it, with a tenth to spare."""
        return self._size_of(way) <= USABLE_SHARE * self.memory_bytes

    def seconds(self, way: Needs) -> dict[str, float] | None:
        """Seconds by stage; None where no rate is known."""
        return None if self.rates is None else seconds_of(way.case, self.rates)

    @property
    def shown(self) -> Needs:
        """The way to show stage by stage: the least that fits, or what is the nearest to it."""
        return self.smallest or min(self.ways, key=self._size_of)

    def _size_of(self, way: Needs) -> int:
        return way.device_bytes if self.on_gpu else way.machine_bytes

    @property
    def verdict(self) -> str:
        """What to start, in one sentence."""
        memory = format_bytes(self.memory_bytes, 0)
        if not self.on_gpu:
            here = "this machine's CPU memory"
            if self.smallest:
                return f"It fits into {here}, {memory}, on {_processes(self.smallest.case)}."
            return f"Nothing fits into {here}, {memory}: take a GPU, or a smaller model."
        if self.smallest is None and len(self.ways) == 1:
            return (
                f"It does not fit into {memory}, and these options are for one process: take a "
                "larger GPU, or the default method and objective."
            )
        if self.smallest is None:
            return (
                f"Nothing fits into {memory} a GPU, on up to {self.ways[-1].case.processes}: take "
                "larger ones; where activations are the most, --gradient-checkpointing saves them."
            )
        way = self.smallest.case
        if not way.offload:
            return f"It fits into {memory} on {_processes(way)}."
        host = format_bytes(self.smallest.machine_bytes, 0)
        divided = next((x.case for x in self.ways if self.fits(x) and not x.case.offload), None)
        offers = f", or take {_processes(divided)}" if divided else ""
        return (
            f"One GPU of {memory} does if weights wait in the CPU's memory, {host} of it, which is "
            f"slow{offers}."
        )

    def as_dict(self) -> dict[str, Any]:
        """The record: sizes are whole bytes."""
        ways = [self._way_as_dict(way) for way in self.ways]
        return {
            "model": self.model,
            "device": "gpu" if self.on_gpu else "cpu",
            "memory_bytes": self.memory_bytes,
            "verdict": self.verdict,
            "ways": ways,
        }

    def _way_as_dict(self, way: Needs) -> dict[str, Any]:
        return {
            "processes": way.case.processes,
            "offload": way.case.offload,
            "fits": self.fits(way),
            "device_bytes": way.device_bytes,
            "process_bytes": way.resident_bytes,
            "lead_bytes": way.lead_resident_bytes,
            "machine_bytes": way.machine_bytes,
            "disk_bytes": way.disk_bytes,
            "disk": way.disk,
            "stages": [phase.as_dict() for phase in way.stages()],
            "seconds": self.seconds(way),
        }


def dry_run(config: CompressConfig, device_memory: str | None = None) -> DryRun:
    """Predict before a weight is loaded; `device_memory` is that of a GPU that need not be here.

    Raises InputError for several budgets, and for a model or a budget that cannot be.
    """
    if config.walks:
        raise InputError(
            "--dry-run predicts one budget: give one --keep, without a bound on the loss"
        )
    stated, shape = config_and_shape(resolve_config(config.model, config.revision))
    refuse_quantised(shape)
    check_length(config.sequence_length, limits_of(stated))
    absent = device_memory is not None and not torch.cuda.is_available()
    device = resolve_device("cpu" if absent else config.device)
    memory = memory_of(device)
    if device_memory is not None:
        memory = parse_bytes(device_memory, "--device-memory")
    on_gpu = device.type == "cuda" or device_memory is not None
    case, pruned = case_of(config, shape, on_gpu)
    check_sequences(config, case.own_sequences, case.train)
    rates = None
    if on_gpu == (device.type == "cuda"):
        rates = measured_rates(case.torch_dtype, device)
    undivided = reads_whole_weights(config) or config.objective == "distillation"
    ways = ways_of(case, pruned, undivided=undivided)
    return DryRun(config.model, memory, on_gpu, ways, rates)


def expected_seconds(config: CompressConfig) -> dict[str, float]:
    """Seconds of each stage of one budget on this machine, by the name that its progress has.

    Empty for budgets of a walk, whose stages come once for each.
    """
    if config.walks:
        return {}
    _, shape = config_and_shape(resolve_config(config.model, config.revision))
    device = resolve_device(config.device)
    case, _ = case_of(config, shape, device.type == "cuda")
    rates = measured_rates(case.torch_dtype, device)
    found = seconds_of(replace(case, processes=world()), rates).items()
    names = {"own text": "own-text"} | ({} if config.cuts_in_rounds else {"rounds": "criterion"})
    return {names.get(stage, stage): seconds for stage, seconds in found}


def ways_of(case: Case, pruned: ModelShape, *, undivided: bool = False) -> tuple[Needs, ...]:
    """One process, on a GPU also with offloaded weights, then 2, 4, 8 and 16.

    Not more than there are sequences for a stage; one alone for options that divide no weights.
    """
    most = 1 if undivided else min(case.scored, case.fitted)
    cases = [replace(case, processes=count) for count in PROCESSES if count == 1 or count <= most]
    if case.on_gpu and not undivided:
        cases.insert(1, replace(case, offload=True))
    return tuple(Needs.of(each, pruned) for each in cases)


def memory_of(device: torch.device) -> int:
    """Bytes of a GPU, or of this machine's memory."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def needs_offload(config: CompressConfig, shape: ModelShape, processes: int, memory: int) -> bool:
    """True if a GPU of so many bytes is too small for a process's tensors."""
    case, pruned = case_of(config, shape, on_gpu=True)
    needs = Needs.of(replace(case, processes=processes), pruned)
    return needs.device_bytes > USABLE_SHARE * memory


def _processes(case: Case) -> str:
    if case.processes == 1:
        return "one process"
    return f"{case.processes} processes (torchrun --nproc-per-node {case.processes})"
