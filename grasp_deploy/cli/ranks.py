"""Commands under torchrun: joining the other processes, and one line when one of them is lost."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from grasp_deploy.cli.console import CHECK_FAILED, is_under_torchrun, print_error
from grasp_deploy.errors import InputError

LONGEST_WAIT = timedelta(hours=1)  # of ranks for one that reads or writes files


@contextmanager
def joined_ranks(device: str) -> Iterator[None]:
    """Work with the other processes of torchrun within the `with` block, if it started this one.

    The lead alone prints results. Where a process is lost, one line tells how to go on, with exit
    code 1. Raises InputError for a device that is torchrun's to deal out.
    """
    if not is_under_torchrun():
        yield
        return
    earlier = _join(device)
    try:
        yield
    except (RuntimeError, SystemExit) as error:
        if not _is_loss(error):
            raise
        if not any(_lives(process) for process in earlier):
            print_error(
                "stopped",
                "a process of this run was lost or torchrun was stopped; what was learnt is kept: "
                "give the same command again with --resume, on any number of processes",
            )
        sys.exit(CHECK_FAILED)


def _join(device: str) -> list[int]:
    """Join the group; the ids of this machine's processes of lower rank."""
    import torch
    import torch.distributed as dist

    on_gpu = device != "cpu" and torch.cuda.is_available()
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(
            f"torchrun deals out the GPUs: drop --device {device}, or give cuda or cpu"
        )
    if on_gpu:
        local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= gpus:
            raise InputError(
                f"this machine has {gpus} GPUs, one for each process: give torchrun "
                f"--nproc-per-node {gpus}, or --device cpu"
            )
        torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=LONGEST_WAIT)
    processes = [("", 0)] * dist.get_world_size()
    dist.all_gather_object(processes, (socket.gethostname(), os.getpid()))
    number = dist.get_rank()
    if number:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  open to the end
    here = processes[number][0]
    return [process for host, process in processes[:number] if host == here]


def _is_loss(error: BaseException) -> bool:
    """True for what follows when another rank is gone: a dead connection, torchrun's signal."""
    if isinstance(error, SystemExit):
        return error.code == 128 + signal.SIGTERM
    from torch.distributed import DistError

    return isinstance(error, DistError) or "gloo" in str(error)


def _lives(process: int) -> bool:
    """True if a process of this machine still runs."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except OSError:
        return False
    return state.split()[0] not in "ZX"
