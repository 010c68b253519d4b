"""The learning loop: budget at every step, repeatable, resumable, and it learns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.compression.budget_options import unit_table
from grasp_deploy.pruning.budget import make_budget
from grasp_deploy.pruning.costs import Widths, parameters_cost
from grasp_deploy.pruning.gates import GateSite, gated, straight_through
from grasp_deploy.pruning.learning_state import LearningState
from grasp_deploy.pruning.objective import LossError, distillation_loss, mean_loss
from grasp_deploy.pruning.ranking import Ranking
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule
from grasp_deploy.pruning.training import (
    StepRecord,
    freeze,
    gumbel_noise,
    learn_scales,
    learn_scores,
)
from tests.pruning.tiny_units import GROUP_WIDTH, UNITS, frozen, generator, token_ids

COSTS = parameters_cost(UNITS, Widths(64, 32, 2, False, False, 4, 4))
BUDGET = make_budget(UNITS, COSTS, 0.5 * float(COSTS.sum()))
BLOCKS = CalibrationBlocks.split(token_ids(16, 16), 1 / 4)
SCHEDULE = Schedule(epochs=2, batch_size=3, learning_rate=0.05, seed=0, select="best")
STEPS = 8  # 2 epochs of 12 blocks, three at a time


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return frozen()


def fresh(stage: str, schedule: Schedule = SCHEDULE) -> LearningState:
    start = torch.zeros(UNITS.size) if stage == "gates" else torch.ones(UNITS.size)
    return LearningState(start, schedule.learning_rate)


def mask_of(scores: Tensor) -> Tensor:
    return Ranking.of_scores(scores, BUDGET, 1.5, per_cost=False).mask


def learn(
    stage: str,
    model: PreTrainedModel,
    state: LearningState,
    schedule: Schedule = SCHEDULE,
    noisy: bool = False,
    site: GateSite = "outputs",
) -> Iterator[StepRecord]:
    if stage == "gates":
        return learn_scores(
            *(model, BUDGET, GROUP_WIDTH, BLOCKS, schedule, state),
            temperature=1.5,
            noisy=noisy,
            site=site,
        )
    mask = mask_of(torch.zeros(UNITS.size))
    return learn_scales(model, UNITS, GROUP_WIDTH, mask, BLOCKS, schedule, state)


AVERAGE = replace(SCHEDULE, select="average")


def test_the_budget_holds_at_every_step(model: PreTrainedModel) -> None:
    masks = [record.mask for record in learn("gates", model, fresh("gates"))]
    assert len(masks) == STEPS
    assert all(BUDGET.cost_of(mask) <= BUDGET.limit for mask in masks)
    assert len({tuple(mask.tolist()) for mask in masks}) > STEPS / 2  # and it does learn


@pytest.mark.parametrize("schedule", [SCHEDULE, AVERAGE], ids=["best", "average"])
@pytest.mark.parametrize("stage", ["gates", "scales"])
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
    for step, state_bytes in enumerate(saved):
        resumed = fresh(stage)
        resumed.restore(safetensors.torch.load(state_bytes))
        rest = [(r.step, r.loss, r.heldout_loss) for r in learn(stage, model, resumed, schedule)]
        assert rest == losses[step:]
        assert resumed.best_loss == whole.best_loss
        assert torch.equal(resumed.values, whole.values)
        assert torch.equal(resumed.best_values, whole.best_values)
        assert torch.equal(resumed.chosen(schedule.select), whole.chosen(schedule.select))


@pytest.mark.parametrize("stage", ["gates", "scales"])
def test_best_is_the_lowest_on_held_out_text_and_last_is_the_last(
    stage: str, model: PreTrainedModel
) -> None:
    state = fresh(stage)
    values = [state.values.detach().clone()]
    reported = []
    for record in learn(stage, model, state):
        values.append(state.values.detach().clone())
        reported.append(record.heldout_loss)
    measured = [heldout_loss(stage, model, v) for v in values]
    assert reported == measured[:-1]  # so few steps that every one is checked
    best = min(range(len(values)), key=measured.__getitem__)
    assert torch.equal(state.chosen("best"), values[best])
    assert state.best_loss == measured[best]
    assert torch.equal(state.chosen("last"), values[-1])
    assert not torch.equal(values[best], values[-1])  # on random text the last is not the best


@pytest.mark.parametrize("stage", ["gates", "scales"])
def test_average_is_the_mean_of_the_last_quarter_of_the_steps(
    stage: str, model: PreTrainedModel
) -> None:
    schedule = replace(AVERAGE, epochs=3)
    state = fresh(stage, schedule)
    values = []
    for record in learn(stage, model, state, schedule):
        assert record.heldout_loss is None
        values.append(state.values.detach().double())
    assert len(values) == 12
    mean = torch.stack(values[-3:]).mean(0)
    torch.testing.assert_close(state.chosen("average").double(), mean, rtol=1e-6, atol=1e-7)
    assert not torch.equal(state.chosen("average"), state.chosen("last"))


def test_kept_units_learn_a_scale_and_removed_ones_stay_at_one(model: PreTrainedModel) -> None:
    """Learnt on the very sequences that they are measured on, scales must lower the loss."""
    schedule = replace(SCHEDULE, epochs=5, learning_rate=0.01, select="last")
    state, mask = fresh("scales", schedule), mask_of(torch.zeros(UNITS.size))
    records = list(learn("scales", model, state, schedule))
    scales = state.chosen("last")
    assert all(torch.equal(record.mask, mask) for record in records)
    assert bool((scales[~mask] == 1).all()) and bool((scales[mask] != 1).all())
    with gated(model, UNITS, GROUP_WIDTH) as gates:
        gates.assign(mask.float())
        before = mean_loss(model, BLOCKS.train, 4)
        gates.assign(mask * scales)
        assert mean_loss(model, BLOCKS.train, 4) < before - 0.05


def test_the_last_values_are_measured_too(model: PreTrainedModel) -> None:
    same = CalibrationBlocks(BLOCKS.train, BLOCKS.train)  # measured on what is learnt from
    schedule = Schedule(epochs=2, batch_size=12, learning_rate=0.01, seed=0, select="best")
    state = fresh("scales", schedule)
    everything = torch.ones(UNITS.size, dtype=torch.bool)
    list(learn_scales(model, UNITS, GROUP_WIDTH, everything, same, schedule, state))
    assert torch.equal(state.chosen("best"), state.values)
    assert state.best_loss < mean_loss(model, BLOCKS.train, 12)


def heldout_loss(stage: str, model: PreTrainedModel, values: Tensor) -> float:
    scores = values if stage == "gates" else torch.zeros(UNITS.size)
    gate = mask_of(scores) * (1 if stage == "gates" else values)
    with gated(model, UNITS, GROUP_WIDTH) as gates:
        gates.assign(gate.float())
        return mean_loss(model, BLOCKS.heldout, SCHEDULE.batch_size)


def test_the_last_values_cost_no_held_out_passes(model: PreTrainedModel) -> None:
    last = Schedule(epochs=1, batch_size=6, learning_rate=0.05, seed=0, select="last")
    state = fresh("gates", last)
    assert [record.heldout_loss for record in learn("gates", model, state, last)] == [None] * 2
    assert torch.equal(state.chosen("best"), state.values)  # nothing was measured


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


def test_a_gradient_that_is_no_number_stops_the_run_too(
    model: PreTrainedModel,
) -> None:
    """A score that became nan would stay in the mask, and no loss of a mask would ever show it."""
    state = fresh("gates")
    state.values.register_hook(
        lambda gradient: gradient.index_fill(0, torch.tensor([3]), torch.inf)
    )
    before = state.values.detach().clone()
    with pytest.raises(LossError, match="a gradient of the gates stage is not finite at step 1"):
        list(learn("gates", model, state))
    assert torch.equal(state.values, before)


@pytest.mark.parametrize("stage", ["gates", "scales"])
def test_small_gradients_do_not_vanish_in_half_precision(stage: str) -> None:
    """Adam's first step is the sign of the gradient: 0 where float16 has rounded it away."""
    moved = []
    for dtype in (torch.float32, torch.float16):
        half = frozen(dtype=dtype)
        half.lm_head.weight.mul_(3e-5)
        state = fresh(stage)
        before = state.values.detach().clone()
        next(iter(learn(stage, half, state)))
        moved.append((state.values.detach() - before).sign())
    assert float((moved[0] == moved[1]).float().mean()) > 0.99


def test_learning_finds_a_better_mask_than_the_one_it_starts_from(
    demo_model: Path, demo_text: tuple[Path, Path]
) -> None:
    model = load(demo_model)
    freeze(model)
    shape = model_shape(read_config(demo_model))
    units = unit_table(shape)
    costs = parameters_cost(units, Widths(192, 32, 2, False, False, 2, 2))
    budget = make_budget(units, costs, 0.6 * float(costs.sum()))
    blocks = CalibrationBlocks.split(demo_blocks(demo_model, demo_text[0]), 1 / 8)
    schedule = Schedule(epochs=2, batch_size=4, learning_rate=0.1, seed=0, select="best")
    state = LearningState(torch.zeros(units.size), schedule.learning_rate)
    records = list(learn_scores(model, budget, 64, blocks, schedule, state, temperature=1.5))
    assert records[0].heldout_loss is not None
    assert state.best_loss < records[0].heldout_loss - 0.5  # nats; 1.0 when this was written


def demo_blocks(folder: Path, text: Path) -> Tensor:
    lines = text.read_text().splitlines()[:100]
    joined = "\n\n".join(json.loads(line)["text"] for line in lines)
    ids = torch.tensor(load_tokenizer(folder)(joined, verbose=False)["input_ids"])
    return ids[: 32 * 96].view(32, 96)


def test_a_distilled_step_follows_the_divergence_from_open_gates(model: PreTrainedModel) -> None:
    """The first AdamW step is the learning rate against the gradient's sign."""
    schedule = replace(SCHEDULE, distil=True, select="last")
    state = fresh("gates", schedule)
    record = next(learn("gates", model, state, schedule))
    ids = schedule.batch(BLOCKS, 0)
    scores = torch.zeros(UNITS.size, requires_grad=True)
    mask = mask_of(scores.detach())
    dense = model(input_ids=ids).logits.detach()
    with gated(model, UNITS, GROUP_WIDTH) as gates:
        gates.assign(straight_through(torch.sigmoid(scores / 1.5), mask))
        loss = distillation_loss(dense, model(input_ids=ids).logits)
        loss.backward()
    assert record.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert scores.grad is not None
    moved = scores.grad.abs() > 1e-6
    expected = -0.05 * scores.grad.sign()
    torch.testing.assert_close(state.values.detach()[moved], expected[moved], rtol=1e-2, atol=1e-4)


def test_gates_on_keys_and_values_see_the_same_losses_and_go_elsewhere(
    model: PreTrainedModel,
) -> None:
    states = [fresh("gates"), fresh("gates")]
    first = [
        next(learn("gates", model, states[0], site="outputs")),
        next(learn("gates", model, states[1], site="keys-values")),
    ]
    assert first[1].loss == pytest.approx(first[0].loss, rel=1e-6)
    assert first[1].heldout_loss == pytest.approx(first[0].heldout_loss, rel=1e-6)
    assert bool((states[0].values != states[1].values)[UNITS.is_kv].any())


def test_noise_moves_the_masks_of_steps_and_not_those_that_are_measured(
    model: PreTrainedModel,
) -> None:
    def masks(noisy: bool) -> list[Tensor]:
        schedule = replace(SCHEDULE, learning_rate=1e-6)
        state = LearningState(torch.randn(UNITS.size, generator=generator(0)), 1e-6)
        steps = learn("gates", model, state, schedule, noisy=noisy)
        return [record.mask for record in steps]

    still, noisy = masks(False), masks(True)
    assert all(torch.equal(still[0], mask) for mask in still)
    assert len({tuple(mask.tolist()) for mask in noisy}) == STEPS
    assert all(torch.equal(a, b) for a, b in zip(noisy, masks(True), strict=True))
    assert all(BUDGET.cost_of(mask) <= BUDGET.limit for mask in noisy)


def test_gumbel_noise_has_gumbels_mean_and_variance() -> None:
    noise = gumbel_noise(torch.zeros(200_000), seed=3, step=5)
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(torch.pi**2 / 6, rel=0.02)
