"""The surgeon's loss against what it stands for: least squares, and gradients written out."""

import pytest
import torch
from torch import Tensor

from grasp_deploy.pruning.criteria import obs
from grasp_deploy.pruning.criteria.obs import losses_one_by_one, obs_scores
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.layout import on_inputs, output_projections
from grasp_deploy.pruning.objective import LossError, language_loss
from grasp_deploy.pruning.training import freeze
from tests.pruning.criteria.cases import SEQUENCES, TEXT
from tests.pruning.tiny_units import UNITS, frozen, generator

COLUMNS = 12


def inputs(columns: int = COLUMNS, tokens: int = 60) -> Tensor:
    """Columns that predict each other a little."""
    mixing = torch.randn(columns, columns, generator=generator(3), dtype=torch.float64)
    return torch.randn(tokens, columns, generator=generator(4), dtype=torch.float64) @ mixing


def moments(units: int, width: int) -> Tensor:
    gradients = torch.randn(units, width, 9, generator=generator(5), dtype=torch.float64)
    return gradients @ gradients.mT


def gram(y: Tensor) -> Tensor:
    return y.T @ y / len(y)


def by_least_squares(y: Tensor, of_gradients: Tensor, ridge: float) -> Tensor:
    """Every unit's loss from a regression on all units that are left, repeated at every removal.

    The ridge is noise: rows of it, one for each column.
    """
    units, width, _ = of_gradients.shape
    tokens, noise = len(y), (ridge * y.square().sum(0)).sqrt().diag()
    y = torch.cat([y, noise])
    owner = torch.arange(y.shape[1]) // width
    left, dearest = list(range(units)), 0.0
    at_removal = torch.zeros(units, dtype=torch.float64)
    while left:
        losses = {}
        for unit in left:
            own = y[:, owner == unit]
            others = y[:, [int(o) in left and int(o) != unit for o in owner]]
            rest = own - others @ torch.linalg.lstsq(others, own).solution
            losses[unit] = float((rest.T @ rest / tokens * of_gradients[unit]).sum() / 2)
        cheapest = min(left, key=losses.__getitem__)
        dearest = max(dearest, losses[cheapest])
        at_removal[cheapest] = dearest
        left.remove(cheapest)
    return at_removal


@pytest.mark.parametrize(("width", "panel"), [(1, 4), (1, 64), (2, 1), (3, 6)])
def test_each_loss_is_what_least_squares_says_at_its_turn(
    width: int, panel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obs, "PANEL_COLUMNS", panel)
    y, of_gradients = inputs(), moments(COLUMNS // width, width)
    for noise in (1e-12, 0.3):
        losses = losses_one_by_one(gram(y), of_gradients, noise_share=noise)
        torch.testing.assert_close(losses, by_least_squares(y, of_gradients, noise))


def test_what_cannot_go_makes_its_copies_cheap() -> None:
    """Never taken away, it goes on predicting the others, however little it would be missed."""
    y, of_gradients = inputs(), moments(COLUMNS, 1)
    y[:, 2] = y[:, 1]
    of_gradients[1] = 1e-9  # the copy to go first, if it could
    removable = torch.ones(COLUMNS, dtype=torch.bool)
    removable[[1, 5]] = False
    free = losses_one_by_one(gram(y), of_gradients, noise_share=1e-6)
    losses = losses_one_by_one(gram(y), of_gradients, removable, noise_share=1e-6)
    assert free.argmin() == 1 and losses.argmin() == 2
    assert losses[2] < 1e-3 * free[2]
    assert losses[1] == losses[5] == losses.max()
    assert not losses_one_by_one(gram(y), of_gradients, torch.zeros_like(removable)).any()


@pytest.mark.parametrize("dead", [[0, 2, 3], [0, 1, 2, 3, 4, 5]])
def test_units_that_are_always_zero_cost_nothing_and_change_nothing(dead: list[int]) -> None:
    y, of_gradients = inputs(), moments(6, 2)
    alive = [unit for unit in range(6) if unit not in dead]
    columns = [column for column in range(COLUMNS) if column // 2 in alive]
    alone = losses_one_by_one(gram(y[:, columns]), of_gradients[alive])
    y[:, [column for column in range(COLUMNS) if column // 2 in dead]] = 0
    losses = losses_one_by_one(gram(y), of_gradients)
    assert not losses[dead].any()
    torch.testing.assert_close(losses[alive], alone)


def test_inputs_that_overflow_are_refused() -> None:
    with pytest.raises(LossError, match="not finite"):
        losses_one_by_one(torch.full((2, 2), torch.inf, dtype=torch.float64), moments(2, 1))


@pytest.mark.parametrize("name", ["llama", "llama-biases", "qwen3", "mistral-sliding"])
def test_the_scores_are_the_losses_of_both_factors(name: str) -> None:
    """All inputs behind the gates at once, and gradients by autograd."""
    model, mask = frozen(name), torch.ones(UNITS.size)
    mask[UNITS.ffn(1)][::2] = 0
    mask[UNITS.kv(2)][:1] = 0
    inputs: dict[int, Tensor] = {}

    def keep(segment: int, x: Tensor) -> Tensor:
        inputs[segment] = x if x.requires_grad else x.requires_grad_()
        inputs[segment].retain_grad()
        return inputs[segment]

    with gated(model, UNITS) as gates:
        gates.assign(mask)
        scores = obs_scores(model, UNITS, TEXT)
        with on_inputs(output_projections(model), keep):
            (language_loss(model, SEQUENCES) * SEQUENCES[:, 1:].numel()).backward()
    expected = []
    for segment, size in enumerate(UNITS.segment_sizes):
        y, gradient = inputs[segment].detach(), inputs[segment].grad
        assert gradient is not None
        y, g = (x.flatten(0, 1).double() for x in (y, gradient))
        moments = [part.T @ part / len(g) for part in g.split(y.shape[1] // size, dim=1)]
        expected.append(losses_one_by_one(y.T @ y / len(y), torch.stack(moments)))
    torch.testing.assert_close(scores, torch.cat(expected), rtol=1e-3, atol=1e-12)


def test_layers_whose_units_all_stay_are_left_out() -> None:
    model = frozen("llama")
    is_kv = UNITS.is_kv
    every = obs_scores(model, UNITS, TEXT)
    scores = obs_scores(model, UNITS, TEXT, removable=is_kv)
    assert torch.equal(scores[is_kv], every[is_kv]) and every[~is_kv].any()
    assert not scores[~is_kv].any()


def test_checkpointed_activations_give_the_same_scores() -> None:
    model = frozen("llama")
    plain = obs_scores(model, UNITS, TEXT)
    freeze(model, gradient_checkpointing=True)
    torch.testing.assert_close(obs_scores(model, UNITS, TEXT), plain)
