"""Learning of low-rank adapters on a pruned model, from the dense model's predictions on text."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grasp_deploy.healing.settings import HealConfig
from grasp_deploy.pruning.layout import PRUNABLE_LINEARS
from grasp_deploy.pruning.objective import mean_loss
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule

LINEARS = tuple(linear.name.rpartition(".")[2] for linear in PRUNABLE_LINEARS)
WARMUP_SHARE = 0.05  # of the time, in which the learning rate rises
CHECKS = 20  # of the held-out loss, spread evenly over the time
PATIENCE = 5  # checks without a new best, after which healing ends
ROUNDING = 1e-9  # of a share: 0.1 + 0.05 is above 0.15
SHRINKAGE = 0.3  # factor on the learning rate after a check without a new best


class LoraDistiller:
    """Adapters on a pruned student model, their optimiser, and the best adapters so far."""

    def __init__(
        self, config: HealConfig, blocks: CalibrationBlocks, teacher: nn.Module, student: nn.Module
    ) -> None:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(config.seed)  # of the adapters' first values
        adapters = LoraConfig(
            r=config.rank, lora_alpha=2 * config.rank, target_modules=list(LINEARS)
        )
        self.config, self.blocks, self.teacher = config, blocks, teacher.eval()
        # For the order of the sequences alone: minutes or steps decide when to end.
        self.schedule = Schedule(blocks, 1, config.batch_size, config.learning_rate, config.seed)
        self.adapted = get_peft_model(student, adapters)  # puts them into the student itself
        self.student = student.eval()  # no dropout to switch on
        self.parameters = [p for p in student.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.learning_rate = config.learning_rate
        self.step, self.seconds = 0, 0.0
        self.best_loss = self.heldout_loss()
        self.best = self._snapshot()

    def learn(self) -> Iterator[dict[str, Any]]:
        """Learn until the end, or until the held-out loss stops falling; yields a row per step.

        A check without a new best returns to the best adapters and continues with shorter steps:
        the length that a model bears depends on the model and on the loss it can still win.
        """
        start, checks, checks_without_best = time.perf_counter(), 0, 0
        done, total = self._progress()
        while done < total and checks_without_best < PATIENCE:
            distance = self._learn_step(done / total)
            self.seconds = time.perf_counter() - start
            done, total = self._progress()
            heldout_loss, checks_due = None, math.floor(CHECKS * (done / total) + ROUNDING)
            if checks_due > checks or not math.isfinite(distance):
                checks = checks_due
                heldout_loss = self.heldout_loss()
                if heldout_loss < self.best_loss:
                    self.best_loss, self.best = heldout_loss, self._snapshot()
                    checks_without_best = 0
                else:
                    checks_without_best += 1
                    self._return_to_best()
                    self.optimizer.state.clear()  # moments of steps that were taken back
                    self.learning_rate *= SHRINKAGE
            yield {
                "stage": "healing",
                "step": math.floor(done),
                "steps": math.ceil(total),
                "distance": distance,
                "heldout_loss": heldout_loss,
            }

    def merge(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The linear layers' weights by name, the best adapters merged into them, in `dtype`.

        The student becomes the merged model with rounded weights: `heldout_loss` is then that of
        the checkpoint, where rounding may have undone a few small steps.
        """
        self._return_to_best()
        self.adapted.merge_and_unload()
        weights = {}
        for name, weight in self.student.named_parameters():
            if name.endswith(".weight") and name.rsplit(".", 2)[-2] in LINEARS:
                rounded = weight.detach().to(dtype)
                weight.data.copy_(rounded)
                weights[name] = rounded.cpu().contiguous()
        return weights

    def heldout_loss(self) -> float:
        """The present student's loss on held-out text, in nats per token."""
        return mean_loss(self.student, self.blocks.heldout, self.config.batch_size)

    def _progress(self) -> tuple[float, float]:
        """Steps done and in all; or seconds, if those are counted."""
        if self.config.steps is not None:
            return self.step, self.config.steps
        limit = 60 * self.config.minutes
        return min(self.seconds, limit), limit

    def _learn_step(self, share: float) -> float:
        """Make one step after a share of all; its distance from the dense model, nats per token.

        Where the distance is not finite, earlier steps were too long, and the adapters stay.
        """
        ids = self.schedule.batch(self.step)
        self.step += 1
        ids = ids.to(next(self.teacher.parameters()).device)
        with torch.no_grad():
            expected = self.teacher(input_ids=ids, use_cache=False).logits
        loss = distillation_loss(expected, self.student(input_ids=ids, use_cache=False).logits)
        distance = float(loss.detach())
        if not math.isfinite(distance):
            return distance
        loss.backward()
        warmup = min(1.0, share / WARMUP_SHARE + 0.01)
        rate = self.learning_rate * warmup * (1 + math.cos(math.pi * min(1.0, share))) / 2
        self.optimizer.param_groups[0]["lr"] = rate
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return distance

    @torch.no_grad()
    def _return_to_best(self) -> None:
        for parameter, best in zip(self.parameters, self.best, strict=True):
            parameter.copy_(best)

    def _snapshot(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters]


def distillation_loss(dense_logits: Tensor, logits: Tensor) -> Tensor:
    """Mean Kullback-Leibler divergence of `(B, T, V)` logits from the dense model's, in nats.

    The text's own loss also rewards learning the text's style. This one asks for the dense
    model's predictions and no more (Hinton et al. 2015, temperature 1).
    """
    expected = F.log_softmax(dense_logits.flatten(0, 1).float(), dim=-1)
    predicted = F.log_softmax(logits.flatten(0, 1).float(), dim=-1)
    return F.kl_div(predicted, expected, log_target=True, reduction="batchmean")
