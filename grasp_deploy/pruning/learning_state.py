"""Everything that a stage of learning keeps from one step to the next."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.schedule import Select


class LearningState:
    """Values, optimiser moments, and the best and mean values so far."""

    def __init__(self, start: Tensor, learning_rate: float) -> None:
        self.step = 0
        self.values = nn.Parameter(start)  # (N,) scores or scales
        self.optimizer = torch.optim.AdamW(
            [self.values], lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.best_values = start.clone()
        self.best_loss = math.inf
        self.averaged = 0  # number of values in the mean
        self.mean_values = start.clone()

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors, for saving; the mean only once it has values."""
        adam = self.optimizer.state[self.values]
        tensors = {
            "step": torch.tensor(self.step),
            "values": self.values.detach(),
            "best_values": self.best_values,
            "best_loss": torch.tensor(self.best_loss, dtype=torch.float64),
        }
        if self.averaged:
            tensors |= {"mean_values": self.mean_values, "averaged": torch.tensor(self.averaged)}
        names = ("step", "exp_avg", "exp_avg_sq") if adam else ()
        return tensors | {f"adam_{name}": adam[name] for name in names}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Return to a saved state; KeyError or RuntimeError if a tensor is missing or misshapen."""
        device = self.values.device
        self.step = int(tensors["step"])
        self.best_loss = float(tensors["best_loss"])
        self.best_values = tensors["best_values"].to(device)
        self.averaged = int(tensors.get("averaged", 0))
        if self.averaged:
            self.mean_values.copy_(tensors["mean_values"])
        with torch.no_grad():
            self.values.copy_(tensors["values"])
        if "adam_step" in tensors:
            self.optimizer.state[self.values] = {
                "step": tensors["adam_step"],  # AdamW counts on the CPU
                "exp_avg": tensors["adam_exp_avg"].to(device),
                "exp_avg_sq": tensors["adam_exp_avg_sq"].to(device),
            }

    def consider(self, loss: float) -> None:
        """Keep the present values if none did better on the held-out sequences."""
        if loss < self.best_loss:
            self.best_loss = loss
            self.best_values = self.values.detach().clone()

    def average(self) -> None:
        """Add the present values to the mean."""
        self.averaged += 1
        self.mean_values = self.mean_values.lerp(self.values.detach(), 1 / self.averaged)

    def chosen(self, select: Select) -> Tensor:
        """`(N,)` values that the stage ends with; the last where no others were kept."""
        if select == "best" and self.best_loss < math.inf:
            return self.best_values
        return self.mean_values if select == "average" and self.averaged else self.values.detach()
