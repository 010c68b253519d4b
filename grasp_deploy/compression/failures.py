"""Failures of the learning stages that the user can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from grasp_deploy.errors import InputError, first_line
from grasp_deploy.pruning.objective import LossError


@contextmanager
def explained_failures(device: torch.device) -> Iterator[None]:
    """Turn a loss that overflows, a full device or an unsolvable fit into one clear line."""
    try:
        yield
    except LossError as error:
        raise InputError(str(error)) from None
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{device} is out of memory ({first_line(error)}): try "
            "--gradient-checkpointing, a shorter --sequence-length, "
            "--set compensation-sequences=64, or --dtype bfloat16"
        ) from None
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise InputError(
            f"the least squares of a layer cannot be solved ({first_line(error)}): use "
            "more text (--sequences), other text, or --method taylor-element "
            "--set compensation=no"
        ) from None
