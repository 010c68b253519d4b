"""Calibration text in batches, for scores that need text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor, nn

from grasp_deploy.pruning.layout import device_of
from grasp_deploy.pruning.objective import finite, language_loss
from grasp_deploy.pruning.team import ALONE, Team

OnBatch = Callable[[int, int], None]  # steps done, steps in all: sequences, and more for `obs`


@dataclass(frozen=True)
class CalibrationText:
    """Calibration sequences, batch size, a callback for progress, and the seed of their order."""

    sequences: Tensor  # (n, T) int64
    batch_size: int
    on_batch: OnBatch = lambda done, total: None
    seed: int = 0
    team: Team = ALONE  # which shares the text

    def batches(self, model: nn.Module) -> Iterator[Tensor]:
        """`(B, T)` batches on a model's device; `on_batch(done, total)` is called after each."""
        assert len(self.sequences), "scores that read text were given none"
        done = 0
        for batch in self.sequences.split(self.batch_size):
            yield batch.to(device_of(model))
            done += len(batch)
            self.on_batch(done, len(self.sequences))

    def losses(self, model: nn.Module, criterion: str) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's part of each batch with its mean next-token loss, nats.

        One without a part is given a loss of 0. Raises LossError if a loss is not finite.
        """
        everywhere = replace(self, batch_size=self.batch_size * self.team.size)
        for step, batch in enumerate(everywhere.batches(model)):
            mine, share = self.team.deal(batch)
            loss = language_loss(model, mine)
            finite(loss, criterion, step)
            yield mine, loss if share else loss * 0.0
