"""Commands under torchrun: joining the other processes, and one line when one of them is lost."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from grasp_deploy.cli.console import CHECK_FAILED, is_under_torchrun, print_error
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import flag
from grasp_deploy.errors import InputError, first_line, is_signal

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

BY_TORCHRUN = "start the command with torchrun, or unset TORCHELASTIC_RUN_ID to run in one process"
LONGEST_WAIT = timedelta(hours=1)  # that ranks wait for one that reads or writes files


@contextmanager
def joined_ranks(config: CompressConfig, **running: Any) -> Iterator[None]:
    """Work with the other processes of torchrun within the `with` block, if it started this one.

    The lead alone goes on after the block, to print results: others may not see the output. Where
    a process is lost, one line tells how to go on, with exit code 1. Raises InputError if the
    config names one GPU, since torchrun deals them out, and if processes were given different
    configs or `running` options.
    """
    if not is_under_torchrun():
        yield
        return
    import torch.distributed as dist

    store = _join(config, running)
    try:
        yield
        _wait_for_lead(store)
        dist.destroy_process_group()
    except (Exception, SystemExit) as error:
        if not _is_loss(error):
            _ends_first(store)
            raise
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # torchrun's signals would cut the message off
        if _ends_first(store):
            print_error(
                "stopped",
                "a process of this run was lost or torchrun was stopped; what was learnt is kept: "
                "give the same command again with --resume, on any number of processes",
            )
        sys.exit(CHECK_FAILED)
    if int(os.environ["RANK"]):
        sys.exit()


def _join(config: CompressConfig, running: dict[str, Any]) -> Store:
    """Join the process group; return torchrun's store, which outlives each of the processes."""
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    from grasp_deploy.compression.ranks import refuse_differences

    if config.device not in ("auto", "cpu", "cuda"):
        raise InputError(
            f"torchrun deals out the GPUs: drop --device {config.device}, or give cuda or cpu"
        )
    place = [os.environ.get(name, "unset") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    rank, size, local = (int(each) if each.isdecimal() else -1 for each in place)
    if not (0 <= rank < size and local >= 0):  # others would wait for this process, or it for them
        raise InputError(f"RANK, WORLD_SIZE and LOCAL_RANK are {', '.join(place)}: {BY_TORCHRUN}")
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        if local >= (gpus := torch.cuda.device_count()):
            raise InputError(
                f"this machine has fewer GPUs ({gpus}) than processes, of which each wants one: "
                f"give torchrun --nproc-per-node {gpus}, or --device cpu"
            )
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    try:
        store, *_ = next(rendezvous("env://"))
        dist.init_process_group(
            backend, timeout=LONGEST_WAIT, store=store, rank=rank, world_size=size
        )
    except (ValueError, AssertionError, dist.DistError) as error:  # variables set by hand
        reason = f"the other processes of torchrun cannot be joined ({first_line(error)})"
        raise InputError(f"{reason}: {BY_TORCHRUN}") from error
    options = {f"--{name}": [value] for name, value in running.items()}
    for name, value in config.as_dict().items():  # two fields share --keep
        options.setdefault(flag(CompressConfig, name), []).append(value)
    refuse_differences(options)
    return store


def _wait_for_lead(store: Store) -> None:
    """Stay until the lead has written the checkpoint, so that somebody can say that it was lost."""
    with suppress(RuntimeError):  # torchrun has gone, and its store with it
        if int(os.environ["RANK"]) == 0:
            store.set("done", "")
        while not store.check(["done"]):
            time.sleep(0.1)  # a signal interrupts this, unlike the store's own wait


def _ends_first(store: Store) -> bool:
    """True in the process that ends first; the others end because it did, and print nothing."""
    try:
        return store.add("ended", 1) == 1
    except RuntimeError:  # torchrun has gone, and its store with it
        return True


def _is_loss(error: BaseException) -> bool:
    """True for signs that another rank is gone: a dead connection, torchrun's signal."""
    if isinstance(error, SystemExit):
        return is_signal(error)
    from torch.distributed import DistError

    return isinstance(error, DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error)
    )
