"""The learning loop: budget at every step, repeatable, resumable, and it learns."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor
from transformers import PreTrainedModel

from grasp_deploy.files.tensors import write_tensors
from grasp_deploy.pruning.gates import gated, straight_through
from grasp_deploy.pruning.objective import LossError, language_loss, mean_loss
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule
from grasp_deploy.pruning.training import (
    LearningState,
    StepRecord,
    learn_scales,
    learn_scores,
    text_loss,
)
from tests.pruning.tiny_units import BUDGET, UNITS, frozen, token_ids

BLOCKS = CalibrationBlocks(*token_ids(16, 16).split([12, 4]))
SCHEDULE = Schedule(BLOCKS, epochs=2, batch_size=3, learning_rate=0.05, seed=0, cosine=False)
LAST = replace(SCHEDULE, blocks=replace(BLOCKS, heldout=BLOCKS.heldout[:0]))
STEPS = 8  # 2 epochs of 12 blocks, three at a time


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return frozen()


def fresh(stage: str) -> LearningState:
    start = torch.zeros(UNITS.size) if stage == "gates" else torch.ones(UNITS.size)
    return LearningState(start, SCHEDULE.learning_rate)


def mask_of(scores: Tensor) -> Tensor:
    return project(torch.sigmoid(scores / 1.5), BUDGET)


FIRST_MASK = mask_of(torch.zeros(UNITS.size))


def learn(
    stage: str,
    model: PreTrainedModel,
    state: LearningState,
    schedule: Schedule = SCHEDULE,
) -> Iterator[StepRecord]:
    options = schedule, state, text_loss(model, schedule)
    if stage == "scales":
        return learn_scales(model, UNITS, FIRST_MASK, *options)
    return learn_scores(model, BUDGET, *options, temperature=1.5)


def test_the_budget_holds_at_every_step(model: PreTrainedModel) -> None:
    masks = [record.mask for record in learn("gates", model, fresh("gates"))]
    assert len(masks) == STEPS
    assert all(BUDGET.cost_of(mask) <= BUDGET.limit for mask in masks)
    assert len({tuple(mask.tolist()) for mask in masks}) > STEPS / 2  # and it does learn


def test_what_a_larger_budget_removed_stays_out_of_every_mask(model: PreTrainedModel) -> None:
    removed = torch.arange(UNITS.size) % 4 == 0
    state, loss = fresh("gates"), text_loss(model, SCHEDULE)
    options = model, BUDGET, SCHEDULE, state, loss
    for record in learn_scores(*options, temperature=1.5, removed=removed):
        assert not (record.mask & removed).any() and record.mask.any()
    assert bool(state.values[~removed].all()) and not state.values[removed].any()


@pytest.mark.parametrize(("stage", "schedule"), [("gates", SCHEDULE), ("scales", LAST)])
def test_a_run_goes_on_from_any_saved_step_bit_for_bit(
    stage: str, schedule: Schedule, model: PreTrainedModel
) -> None:
    """From the first, too: two runs are the same."""
    whole = fresh(stage)
    saved = [safetensors.torch.save(whole.tensors())]
    losses = []
    for record in learn(stage, model, whole, schedule):
        losses.append((record.step, record.loss, record.heldout_loss))
        saved.append(safetensors.torch.save(whole.tensors()))
    assert len(saved) == STEPS + 1
    for step in (0, 1, 5, STEPS):
        resumed = fresh(stage)
        resumed.restore(safetensors.torch.load(saved[step]))
        rest = [(r.step, r.loss, r.heldout_loss) for r in learn(stage, model, resumed, schedule)]
        assert rest == losses[step:]
        rest_of_state, expected = resumed.tensors(), whole.tensors()
        assert rest_of_state.keys() == expected.keys()
        assert all(torch.equal(rest_of_state[name], expected[name]) for name in expected)


def test_the_lowest_on_held_out_text_is_chosen_or_else_the_last(model: PreTrainedModel) -> None:
    state = fresh("gates")
    values = [state.values.detach().clone()]
    reported = []
    for record in learn("gates", model, state):
        values.append(state.values.detach().clone())
        reported.append(record.heldout_loss)
    measured = []
    with gated(model, UNITS) as gates:
        for scores in values:
            gates.assign(mask_of(scores).float())
            measured.append(mean_loss(model, BLOCKS.heldout, SCHEDULE.batch_size))
    checked = [step for step in range(STEPS + 1) if SCHEDULE.is_check(step)]
    assert reported == [measured[s] if s in checked else None for s in range(STEPS)]
    best = min(checked, key=measured.__getitem__)
    assert torch.equal(state.chosen, values[best])
    assert not torch.equal(values[best], values[-1])  # on random text the last is not the best
    last = fresh("gates")
    assert all(record.heldout_loss is None for record in learn("gates", model, last, LAST))
    assert torch.equal(last.chosen, values[-1])


def test_the_learning_rate_falls_from_step_to_step(model: PreTrainedModel) -> None:
    schedule, state = replace(LAST, cosine=True), fresh("gates")
    steps = learn("gates", model, state, schedule)
    rates = [state.optimizer.param_groups[0]["lr"] for _ in steps]
    assert rates == [schedule.rate(step) for step in range(STEPS)] and rates[0] == 0.05


def test_kept_units_learn_a_scale_and_removed_ones_stay_at_one(model: PreTrainedModel) -> None:
    """Learnt on the very sequences that they are measured on, scales must lower the loss."""
    schedule = replace(LAST, epochs=5, learning_rate=0.01)
    state, mask = LearningState(torch.ones(UNITS.size), 0.01), FIRST_MASK
    records = list(learn("scales", model, state, schedule))
    scales = state.chosen
    assert all(torch.equal(record.mask, mask) for record in records)
    assert bool((scales[~mask] == 1).all()) and bool((scales[mask] != 1).all())
    with gated(model, UNITS) as gates:
        gates.assign(mask.float())
        before = mean_loss(model, BLOCKS.train, 4)
        gates.assign(mask * scales)
        assert mean_loss(model, BLOCKS.train, 4) < before - 0.05


def test_weights_that_are_no_numbers_stop_the_run_at_the_step() -> None:
    broken = frozen()
    state = fresh("gates")
    steps = learn("gates", broken, state)
    next(steps)
    before = state.values.detach().clone()
    broken.model.norm.weight.fill_(torch.nan)
    with pytest.raises(LossError, match=r"the gates stage is nan at step 2: .* --dtype float32"):
        list(steps)
    assert torch.equal(state.values, before)  # no step was taken on it


def test_a_gradient_that_is_no_number_stops_the_run_too(model: PreTrainedModel) -> None:
    """A score that became nan would stay in the mask, and no loss of a mask would ever show it."""
    state = fresh("gates")
    state.values.register_hook(
        lambda gradient: gradient.index_fill(0, torch.tensor([3]), torch.inf)
    )
    with pytest.raises(LossError, match="a gradient of the gates stage is not finite at step 1"):
        list(learn("gates", model, state))
    assert not state.values.any()  # as at the start


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_values_that_overflow_on_heldout_text_are_not_chosen(
    broken: float, model: PreTrainedModel, tmp_path: Path
) -> None:
    state, start = fresh("gates"), torch.zeros(UNITS.size)

    def loss(places: Tensor) -> Tensor:
        value = language_loss(model, BLOCKS.rows[places])
        return value if torch.is_grad_enabled() or state.step == 0 else value * broken

    records = list(learn_scores(model, BUDGET, SCHEDULE, state, loss, temperature=1.5))
    assert torch.equal(state.chosen, start)
    told = {"metrics": [record.heldout_loss for record in records]}
    write_tensors(tmp_path / "gates.safetensors", state.tensors(), told)


@pytest.mark.parametrize(("size", "batch_size"), [(3e-5, 3), (1.0, 10**6)])
def test_small_gradients_do_not_vanish_in_half_precision(size: float, batch_size: int) -> None:
    """Adam's first step is the sign of the gradient: 0 where float16 has rounded it away.

    Nor do they overflow where a batch takes all sequences and more.
    """
    moved = []
    for dtype in (torch.float32, torch.float16):
        half = frozen(dtype=dtype)
        half.lm_head.weight.mul_(size)
        state = fresh("gates")
        next(learn("gates", half, state, replace(SCHEDULE, batch_size=batch_size)))
        moved.append(state.values.detach().sign())
    assert float((moved[0] == moved[1]).float().mean()) > 0.99


def test_the_first_step_is_the_learning_rate_against_the_gradients_sign(
    model: PreTrainedModel,
) -> None:
    state = fresh("gates")
    record = next(learn("gates", model, state))
    scores = torch.zeros(UNITS.size, requires_grad=True)
    with gated(model, UNITS) as gates:
        gates.assign(straight_through(torch.sigmoid(scores / 1.5), FIRST_MASK))
        loss = language_loss(model, BLOCKS.rows[SCHEDULE.batch(0)])
        loss.backward()
    assert record.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert scores.grad is not None
    moved = scores.grad.abs() > 1e-6
    expected = -0.05 * scores.grad.sign()
    torch.testing.assert_close(state.values.detach()[moved], expected[moved], rtol=1e-2, atol=1e-4)
