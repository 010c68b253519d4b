"""What gates and scales lower: the divergence from the dense model's predictions, or the loss."""

import math

from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel
from grasp_deploy.compression.stages import PREDICTIONS, Stages
from grasp_deploy.pruning.distilling import DensePredictions
from grasp_deploy.pruning.objective import mean_of
from grasp_deploy.pruning.schedule import Schedule
from grasp_deploy.pruning.training import Loss, text_loss


class Objective:
    """The objective of a run, in nats per token, on sequences learnt from and held out.

    The dense model reads each batch once, in one go unless a run was killed.
    """

    def __init__(self, frozen: FrozenModel, stages: Stages) -> None:
        self._frozen, self._stages = frozen, stages
        self._of_text = frozen.run.config.objective == "text"
        self._predictions = DensePredictions(frozen.model, frozen.run.blocks.rows, frozen.team)

    @property
    def name(self) -> str:
        """What is lowered, as metrics name it."""
        return "loss" if self._of_text else "divergence"

    def over(self, schedule: Schedule, step: int, mask: Tensor) -> Loss:
        """The objective on a schedule's batches from a step on.

        The refitted columns of the `(N,)` mask are in the model. Until scales have begun, the dense
        model also reads all the batches that they will need.
        """
        if self._of_text:
            return text_loss(self._frozen.model, schedule)
        size, begun = self._frozen.team.size, self._stages.workspace.has("scales")
        later = [] if begun else self._frozen.run.scale_schedule.batches(0, size)
        self._read([*schedule.batches(step, size), *later], mask)
        return self._predictions.divergence

    def heldout(self, mask: Tensor) -> float:
        """The objective of a `(N,)` mask on held-out text; infinite where it is not finite."""
        schedule, team = self._frozen.run.scale_schedule, self._frozen.team
        loss = self.over(schedule, 0, mask)
        with self._frozen.gated(mask.float()):
            places = schedule.blocks.heldout_places
            mean = mean_of(loss, places, schedule.batch_size, team)
        return mean if math.isfinite(mean) else math.inf

    def _read(self, batches: list[Tensor], mask: Tensor) -> None:
        new = {tuple(b.tolist()): b for b in batches if not self._predictions.has(b)}
        if not new:
            return
        with self._frozen.as_dense(mask):
            for done, batch in enumerate(new.values(), start=1):
                self._predictions.read(batch)
                self._stages.report(PREDICTIONS, done, len(new))
