"""Calibration text in batches, for the criteria that need text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from grasp_deploy.pruning.layout import device_of
from grasp_deploy.pruning.objective import finite, language_loss

OnBatch = Callable[[int, int], None]  # steps done, steps in all: sequences, and more for `obs`


@dataclass(frozen=True)
class CalibrationText:
    """Calibration sequences, the batch size, and a callback for progress."""

    sequences: Tensor  # (n, T) int64
    batch_size: int
    on_batch: OnBatch = lambda done, total: None

    def batches(self, model: nn.Module) -> Iterator[Tensor]:
        """`(B, T)` batches on a model's device; `on_batch(done, total)` is called after each."""
        assert len(self.sequences), "a criterion that reads text was given none"
        done = 0
        for batch in self.sequences.split(self.batch_size):
            yield batch.to(device_of(model))
            done += len(batch)
            self.on_batch(done, len(self.sequences))

    def losses(self, model: nn.Module, criterion: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Each batch with its mean next-token loss, nats; LossError if that is not finite."""
        for step, batch in enumerate(self.batches(model)):
            loss = language_loss(model, batch)
            finite(loss, criterion, step)
            yield batch, loss
