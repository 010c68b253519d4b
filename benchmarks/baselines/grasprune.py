"""The paper's own recipe (Wang et al. 2026), and what it compares itself with.

Gates learn from equal scores, on the budget at every step, for four epochs at a constant rate; the
last mask stays. Scores are keep probabilities, by which the paper ranks.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.gates import gated, straight_through
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule
from grasp_deploy.pruning.training import LearningState, StepRecord, descend, text_loss

EPOCHS, LEARNING_RATE, TEMPERATURE = 4, 0.01, 1.5


def paper(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """Projected straight-through gates (section 3.3, algorithm 1)."""
    return learnt(*learning(model, budget, text), text)


def gumbel_topk(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """Gumbel-TopK gates: each step ranks the scores with new Gumbel noise added to `s / tau`."""
    return learnt(*learning(model, budget, text, noisy=True), text)


def paper_per_cost(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """The ablation that ranks by keep probability per cost (section 4.4)."""
    prices = torch.where(budget.costs > 0, budget.costs, 1.0)
    return learnt(*learning(model, budget, text, prices=prices), text) / prices


def beginning(budget: Budget, text: CalibrationText) -> tuple[LearningState, Schedule]:
    """Equal scores, and the paper's steps over the text, of which a run held out a sixteenth."""
    start = torch.zeros(budget.units.size, device=budget.costs.device)
    blocks = CalibrationBlocks(text.sequences, text.sequences[:0])
    schedule = Schedule(blocks, EPOCHS, text.batch_size, LEARNING_RATE, text.seed, cosine=False)
    return LearningState(start, LEARNING_RATE), schedule


def learning(
    model: nn.Module,
    budget: Budget,
    text: CalibrationText,
    *,
    noisy: bool = False,
    prices: Tensor | float = 1.0,
) -> tuple[LearningState, Iterator[StepRecord]]:
    """The state of the scores and the steps that learn them, with new noise in each if `noisy`."""
    state, schedule = beginning(budget, text)

    def gates_at(step: int | None) -> tuple[Tensor, Tensor]:
        scores: Tensor = state.values
        if noisy and step is not None:  # not where masks are measured
            scores = scores + TEMPERATURE * gumbel_noise(state.values, schedule.seed, step)
        probabilities = torch.sigmoid(scores / TEMPERATURE)
        mask = project(probabilities.detach() / prices, budget)
        return straight_through(probabilities, mask), mask

    def steps() -> Iterator[StepRecord]:
        with gated(model, budget.units) as gates:
            loss = text_loss(model, schedule)
            yield from descend("gates", model, gates.assign, gates_at, schedule, state, loss)

    return state, steps()


def learnt(state: LearningState, steps: Iterator[StepRecord], text: CalibrationText) -> Tensor:
    """`(N,)` keep probabilities after all steps."""
    for step in steps:
        text.on_batch(step.step, step.steps)
    return torch.sigmoid(state.chosen / TEMPERATURE)


def gumbel_noise(like: Tensor, seed: int, step: int) -> Tensor:
    """`(N,)` standard Gumbel noise of a step, the same on every device."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    uniform = torch.rand(len(like), generator=generator, dtype=torch.float64)
    return -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12))).to(like)
