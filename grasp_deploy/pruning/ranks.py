"""Several processes at one compression: each holds a part of the weights and reads a part of text.

torchrun starts the processes, called ranks. A weight is divided by rows, as FSDP2 does it. Rank 0,
the lead, alone writes files. With one process every function hands back what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

T = TypeVar("T")


def world() -> int:
    """The number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The number of this rank, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_lead() -> bool:
    """True in the process that writes files; by itself every process does."""
    return rank() == 0


def is_joined() -> bool:
    """True if the process belongs to a group of ranks, of one at least."""
    return dist.is_initialized()


def join_alone() -> None:
    """Make a group of this process alone, whose weights may then wait on the CPU."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)


def leave() -> bool:
    """Part with the other ranks; True on the lead, which goes on by itself."""
    lead = is_lead()
    if is_joined():
        dist.barrier()  # nobody goes while another still listens
        dist.destroy_process_group()
    return lead


def add_up(*tensors: Tensor) -> None:
    """Sum tensors over all ranks, in place; the same bits on each."""
    if world() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def add_up_at(owner: int, tensor: Tensor) -> bool:
    """Sum a tensor over all ranks on one of them; True there, and elsewhere it is spent."""
    if world() > 1:
        dist.reduce(tensor, dst=owner)
    return rank() == owner


def from_lead(value: Any) -> Any:
    """What the lead has, on every rank; for plain values and tensors on the CPU."""
    if world() == 1:
        return value
    shared = [value]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def by_lead(make: Callable[[], T]) -> T:
    """What the lead makes, on every rank; or the error that it makes instead."""
    if world() == 1:
        return make()
    made: T | Exception | None = None
    if is_lead():
        try:
            made = make()
        except Exception as error:
            made = error
    made = from_lead(made)
    if isinstance(made, Exception):
        raise made
    return made


def from_all(value: T) -> list[T]:
    """What each rank has, by its number; for plain values."""
    found = [value] * world()
    if len(found) > 1:
        dist.all_gather_object(found, value)
    return found


def dealt(batch: Tensor) -> tuple[Tensor, float]:
    """The rows of a batch that this rank takes, and their share of it.

    Where none are left it takes the first row with a share of 0: weights are gathered by all ranks
    together, so all must run the model equally often.
    """
    mine = batch[rank() :: world()]
    return (mine, len(mine) / len(batch)) if len(mine) else (batch[:1], 0.0)


def dealt_batches(sequences: Tensor, batch_size: int) -> list[Tensor]:
    """This rank's `(B, T)` batches where layers are gathered once for all of them."""
    return list(sequences[rank() :: world()].split(batch_size))


def sizes_anywhere(batches: list[Tensor]) -> list[int]:
    """The distinct numbers of rows of the batches of all ranks."""
    found = from_all({len(batch) for batch in batches})
    return sorted(set().union(*found))


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Hold all rows of a module's weights within the `with` block, however often it is called."""
    if not isinstance(module, FSDPModule):
        yield
        return
    module.set_reshard_after_forward(False, recurse=False)
    module.unshard()
    try:
        yield
    finally:
        module.set_reshard_after_forward(True, recurse=False)
        module.reshard()


def gather_again(module: nn.Module) -> None:
    """Take what ranks have written into their parts of a gathered module's weights."""
    if isinstance(module, FSDPModule):
        module.reshard()
        module.unshard()


def part_of(weight: Tensor) -> Tensor:
    """This rank's rows of a weight, whose memory they share; all rows if it is not divided."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def rows_of(rows: int) -> slice:
    """The rows that this rank holds of a weight with so many."""
    each = -(-rows // world())
    return slice(min(rank() * each, rows), min((rank() + 1) * each, rows))


def rows_at_lead(part: Tensor) -> Tensor:
    """The rows of all ranks on the lead, of which each has a part on the CPU; elsewhere none."""
    if world() == 1:
        return part
    lengths = torch.zeros(world(), dtype=torch.int64)
    lengths[rank()] = len(part)
    add_up(lengths)
    padded = part.new_zeros(int(lengths.max()), part.shape[1])
    padded[: len(part)] = part
    parts = [torch.empty_like(padded) for _ in lengths] if is_lead() else None
    dist.gather(padded, parts, dst=0)
    if parts is None:
        return part[:0]
    return torch.cat([each[:length] for each, length in zip(parts, lengths, strict=True)])


def rows_from_lead(whole: Tensor | None, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """This rank's rows, on the CPU, of a tensor of that shape which only the lead has."""
    if world() == 1:
        assert whole is not None, "the only process is the lead"
        return whole.to(dtype)
    sent = torch.empty(shape, dtype=dtype) if whole is None else whole.to(dtype)
    dist.broadcast(sent, src=0)
    return sent[rows_of(shape[0])]
