"""The frozen model under compression, and what every stage does with it.

Weights never take a gradient: only gates, and the output columns that are refitted, change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.ranks import team
from grasp_deploy.compression.resume import COLUMNS
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.compensation import Fit, OutputProjections, compensate
from grasp_deploy.pruning.gates import gated, scaled_norms
from grasp_deploy.pruning.objective import OVERFLOW, LossError, mean_loss, sequence_losses
from grasp_deploy.pruning.training import freeze


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

    def heldout_loss(
        self,
        gates: Tensor | None = None,
        norm_scales: Tensor | None = None,
        sequences: Tensor | None = None,
    ) -> float | None:
        """Loss on held-out or other sequences, as `gated`, in nats per token; None without any.

        Without gates, and before any refit, the dense model's. LossError if it is not finite.
        """
        heldout = self.run.blocks.heldout if sequences is None else sequences
        if not len(heldout):
            return None
        with self.gated(gates, norm_scales):
            loss = mean_loss(self.model, heldout, self.run.config.batch_size, self.team)
        if not math.isfinite(loss):
            which = "dense" if gates is None else "pruned"
            raise LossError(f"the {which} model's loss on held-out sequences is {loss}: {OVERFLOW}")
        return loss

    def heldout_losses(
        self, gates: Tensor | None = None, norm_scales: Tensor | None = None
    ) -> list[float]:
        """Losses of the held-out sequences one by one, as `gated`; none without any."""
        heldout = self.run.blocks.heldout
        if not len(heldout):
            return []
        with self.gated(gates, norm_scales):
            batch_size = self.run.config.batch_size
            return sequence_losses(self.model, heldout, batch_size, self.team).tolist()

    def mask_loss(self, mask: Tensor) -> float:
        """Held-out loss of a `(N,)` mask; infinite where it is unknown or not finite."""
        try:
            loss = self.heldout_loss(mask.float())
        except LossError:
            loss = None
        return math.inf if loss is None else loss

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

    def put(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The vectors among a stage's tensors; the columns among them are put into the model."""
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
            raise InputError(
                f"{name} of {run.source.name} holds numbers that are not finite in {weight.dtype}: "
                "fetch the model again, or try --dtype float32"
            )
