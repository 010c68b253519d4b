"""Room for a run's model: its device, or the CPU's memory; and its failures in one line."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.read.loading import load_checked
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.ranks import is_joined, joined_alone, load_divided, world
from grasp_deploy.errors import InputError, first_line, is_out_of_memory
from grasp_deploy.pruning.objective import LossError

logger = logging.getLogger(__name__)
T = TypeVar("T")


def load_for(run: PreparedRun, offload: bool) -> PreTrainedModel:
    """The run's model on its device, or with weights that wait in the CPU's memory."""
    place = run.source.directory, run.device, str(run.dtype).removeprefix("torch.")
    if offload:
        gc.collect()  # what is left of the model that was too large
        torch.cuda.empty_cache()
        return load_divided(*place, run.config.attention, offload=True)
    return (load_divided if is_joined() else load_checked)(*place, run.config.attention)


def with_room(run: PreparedRun, learn: Callable[[bool], T]) -> T:
    """What `learn(False)` returns; or `learn(True)`, if weights must wait in the CPU's memory.

    That is where a GPU's memory runs out. `learn` goes on from what its stages have saved. Other
    failures are explained in one line; so is this one where several processes wait for each other.
    """
    with explained_failures(run):
        try:
            return learn(False)
        except RuntimeError as error:
            if not is_out_of_memory(error) or not may_offload(run):
                raise
            reason = first_line(error)  # the error itself would hold on to the model
        logger.warning(
            "%s is too small (%s): going on with weights in the CPU's memory, which is slow; "
            "torchrun divides them among several GPUs",
            *(run.device, reason),
        )
        with nullcontext() if is_joined() else joined_alone():
            return learn(True)


def may_offload(run: PreparedRun) -> bool:
    """True if weights are on a GPU, and may wait in the CPU's memory instead."""
    return run.device.type == "cuda" and run.config.cuts_in_rounds and world() == 1


@contextmanager
def explained_failures(run: PreparedRun) -> Iterator[None]:
    """Turn an overflow, a full device, an unsolvable fit or a missing kernel into one line."""
    try:
        yield
    except LossError as error:
        raise InputError(str(error)) from None
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise InputError(
            f"the least squares of a layer cannot be solved ({first_line(error)}): use more "
            "text (--calibration-sequences), other text, or --set compensation=no"
        ) from None
    except (MemoryError, RuntimeError) as error:
        attention = run.config.attention
        if is_out_of_memory(error):
            raise InputError(
                f"{run.device} is out of memory ({first_line(error)}): try a shorter "
                "--sequence-length, --gradient-checkpointing, fewer --calibration-sequences, or "
                "--dtype bfloat16"
            ) from None
        if attention == "sdpa":
            raise
        raise InputError(
            f"--set attention={attention} does not work on {run.device} ({first_line(error)}): "
            "drop it"
        ) from None
