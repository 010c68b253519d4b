"""Calibration text in batches, read once by each criterion that needs text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

OnBatch = Callable[[int, int], None]  # steps done, steps in all: sequences, and more for `obs`


@dataclass(frozen=True)
class CalibrationText:
    """Calibration sequences, the batch size, and a callback for progress."""

    sequences: Tensor  # (n, T) int64
    batch_size: int
    on_batch: OnBatch = lambda done, total: None

    def batches(self, device: torch.device) -> Iterator[Tensor]:
        """`(B, T)` batches on a device; `on_batch(done, total)` is called behind each."""
        assert len(self.sequences), "a criterion that reads text was given none"
        done = 0
        for batch in self.sequences.split(self.batch_size):
            yield batch.to(device)
            done += len(batch)
            self.on_batch(done, len(self.sequences))


def device_of(model: nn.Module) -> torch.device:
    """The device that a model's parameters are on."""
    return next(model.parameters()).device
