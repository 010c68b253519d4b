"""The model under compression, and what every stage does with it.

Its weights lie on its device, or in the CPU's memory. They never take a gradient: only gates, and
the output columns that are refitted, change.
"""

import gc
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from statistics import fmean
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.read.loading import load_checked
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.ranks import is_joined, joined_alone, load_divided, team, world
from grasp_deploy.compression.resume import COLUMNS
from grasp_deploy.errors import InputError, first_line, is_out_of_memory
from grasp_deploy.pruning.compensation import Fit, OutputProjections, compensate
from grasp_deploy.pruning.gates import gated, scaled_norms
from grasp_deploy.pruning.objective import OVERFLOW, LossError, sequence_losses
from grasp_deploy.pruning.training import freeze

logger = logging.getLogger(__name__)
T = TypeVar("T")


class FrozenModel:
    """A run's model under gates, with output columns that are refitted."""

    def __init__(self, run: PreparedRun, model: PreTrainedModel) -> None:
        """Freeze the weights that `load_for` loaded."""
        freeze(model, run.config.gradient_checkpointing)
        self.run, self.model, self.team = run, model, team()
        self.outputs = OutputProjections(
            model, run.budget.units, resettable=run.config.compensation, team=self.team
        )

    @contextmanager
    def gated(self, gates: Tensor | None, norm_scales: Tensor | None = None) -> Iterator[None]:
        """Hold the model under `(N,)` gates within the `with` block; None opens all of them.

        `norm_scales` are the `(2L + 1, d)` multipliers of the hidden channels behind norms.
        """
        with (
            gated(self.model, self.run.budget.units) as installed,
            scaled_norms(self.model) as norms,
        ):
            if gates is not None:
                installed.assign(gates)
            if norm_scales is not None:
                norms.assign(norm_scales.flatten())
            yield

    def heldout_losses(
        self, heldout: Tensor, gates: Tensor | None = None, norm_scales: Tensor | None = None
    ) -> list[float]:
        """The loss of each held-out sequence in nats per token, under gates as in `gated`.

        Without gates and before any refit it is the dense model's. LossError if it is not finite.
        """
        if not len(heldout):
            return []
        with self.gated(gates, norm_scales):
            batch_size = self.run.config.batch_size
            losses = sequence_losses(self.model, heldout, batch_size, self.team).tolist()
        if not math.isfinite(loss := fmean(losses)):
            which = "dense" if gates is None else "pruned"
            raise LossError(f"the {which} model's loss on held-out sequences is {loss}: {OVERFLOW}")
        return losses

    def refit(self, mask: Tensor, sequences: Tensor) -> Iterator[Fit]:
        """Solve the output columns that a `(N,)` mask keeps, starting from the dense weights."""
        self.outputs.reset()
        run = self.run
        return compensate(
            self.model,
            run.budget.units,
            mask,
            sequences,
            batch_size=run.config.batch_size,
            ridge=run.config.ridge,
            team=self.team,
        )

    @contextmanager
    def as_dense(self, mask: Tensor) -> Iterator[None]:
        """Hold the dense model's weights in the `with` block; then put refitted columns back."""
        if not self.run.config.compensation:
            yield  # nothing was refitted
            return
        columns = self.outputs.extract(mask)
        self.outputs.reset()
        yield
        self.outputs.load(mask, columns)

    def put(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Put the columns among a stage's tensors into the model; return the vectors among them."""
        columns = {name: tensor for name, tensor in tensors.items() if COLUMNS in name}
        # Copies: a vector of the file would keep the columns beside it mapped.
        device = self.run.device
        vectors = {n: t.to(device, copy=True) for n, t in tensors.items() if n not in columns}
        if columns:
            self.outputs.reset()
            self.outputs.load(vectors["mask"], columns)
        return vectors


def refuse_infinite_weights(model: PreTrainedModel, run: PreparedRun) -> None:
    """Raise InputError for NaN or infinity: in the row of a rare token no loss would show it."""
    weights = dict(model.named_parameters())
    parts = [team().part(weight) for weight in weights.values()]
    found = torch.tensor([0 if bool(part.isfinite().all()) else 1 for part in parts])
    team().add_up(found)
    for (name, weight), infinite in zip(weights.items(), found, strict=True):
        if infinite:
            other = "" if weight.dtype == torch.float32 else ", or try --dtype float32"
            raise InputError(
                f"{name} of {run.source.name} holds numbers that are not finite in {weight.dtype}: "
                f"fetch the model again{other}"
            )


def load_for(run: PreparedRun, offload: bool) -> PreTrainedModel:
    """The run's model on its device, or with weights that wait in the CPU's memory."""
    place = run.source.directory, run.device, run.computed_in
    if offload:
        gc.collect()  # what is left of the model that was too large
        torch.cuda.empty_cache()
        return load_divided(*place, offload=True)
    return (load_divided if is_joined() else load_checked)(*place)


def with_room(run: PreparedRun, learn: Callable[[bool], T]) -> T:
    """Return `learn(False)`, or, if a GPU's memory runs out, `learn(True)` with weights on the CPU.

    The second call goes on from what the stages saved in the first. Other failures become an
    InputError of one line; so does a lack of memory where weights cannot wait on the CPU.
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
    is_possible = run.config.cuts_in_rounds and not run.base.shape.experts_per_token
    return run.device.type == "cuda" and is_possible and world() == 1


@contextmanager
def explained_failures(run: PreparedRun) -> Iterator[None]:
    """Turn an overflow, a full device or an unsolvable fit into one line."""
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
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"{run.device} is out of memory ({first_line(error)}): try a shorter "
            "--sequence-length, --gradient-checkpointing, fewer --calibration-sequences, or "
            "--dtype bfloat16"
        ) from None
