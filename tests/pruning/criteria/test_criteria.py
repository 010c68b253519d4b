"""Criteria that read weights and inputs, each against its formula written out for one unit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.criteria.criterion import (
    ADDITIVE,
    CRITERIA,
    criterion_scores,
    magnitude_scores,
    random_scores,
)
from grasp_deploy.pruning.criteria.moments import (
    flap_scores,
    outlier_ratios,
    wanda_structured_scores,
)
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.layout import (
    PRUNABLE_LINEARS,
    coupled_linears,
    on_inputs,
    output_projections,
)
from grasp_deploy.pruning.objective import LossError
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.criteria.cases import SEQUENCES, TEXT, score_by_hand
from tests.pruning.tiny_units import CHANNELS, GROUP_WIDTH, GROUPS, LAYERS, UNITS, frozen, hooks_of
from tests.tiny import random_kept, slice_by_hand


def inputs_by_hand(model: PreTrainedModel, linears: list[nn.Linear]) -> list[Tensor]:
    """`(tokens, width)` inputs of linear layers over all sequences, float64."""
    inputs: dict[int, Tensor] = {}
    with on_inputs(linears, lambda index, x: inputs.update({index: x.flatten(0, 1).double()})):
        model(input_ids=SEQUENCES)
    return [inputs[index] for index in range(len(linears))]


@pytest.mark.parametrize("name", ["llama-biases", "qwen2-tied"])
def test_magnitude_is_the_squared_norm_of_all_that_goes_with_a_unit(name: str) -> None:
    model = frozen(name)
    values = {key: value.detach().square() for key, value in model.named_parameters()}
    expected = score_by_hand(values, lambda part: part.sum())
    torch.testing.assert_close(magnitude_scores(model, UNITS).float(), expected)


def test_flap_and_wanda_are_their_papers_formulas() -> None:
    model = frozen()
    linears = output_projections(model)
    flap, wanda = [], []
    parts = zip(linears, inputs_by_hand(model, linears), UNITS.segment_sizes, strict=True)
    for linear, x, size in parts:
        weight = linear.weight.double()
        wifv = x.var(0) * weight.square().sum(0)
        flap.append(((wifv - wifv.mean()) / wifv.std()).view(size, -1).mean(1))
        sums = (weight.abs() * x.norm(dim=0)).sum(0).view(size, -1).sum(1)
        wanda.append(sums / sums.mean())
    got = flap_scores(model, UNITS, TEXT)
    torch.testing.assert_close(got, torch.cat(flap), rtol=1e-4, atol=1e-5)
    got = wanda_structured_scores(model, UNITS, TEXT)
    torch.testing.assert_close(got, torch.cat(wanda), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["flap", "wanda-structured"])
def test_removed_units_do_not_bend_the_scores_of_those_left(name: str) -> None:
    """Behind gates the scores are those of the model that was really cut."""
    model = frozen()
    kept = random_kept(model.config)
    masks = []
    for groups, channels in kept:
        for size, stays in ((CHANNELS, channels), (GROUPS, groups)):
            masks.append(torch.zeros(size).index_fill(0, torch.tensor(stays), 1.0))
    mask = torch.cat(masks)
    with gated(model, UNITS) as gates:
        gates.assign(mask)
        behind = criterion_scores(name, model, UNITS, TEXT, seed=0)
    left = UnitTable.of_layers([(len(channels), len(groups)) for groups, channels in kept])
    cut = criterion_scores(name, slice_by_hand(model, kept), left, TEXT, seed=0)
    torch.testing.assert_close(behind[mask.bool()], cut, rtol=1e-4, atol=1e-5)


def test_outliers_are_counted_over_all_prunable_weights_of_a_layer() -> None:
    model = frozen()
    linears = [coupled.linear for coupled in coupled_linears(model)]
    pairs = zip(linears, inputs_by_hand(model, linears), strict=True)
    sizes = [(linear.weight.double().abs() * x.norm(dim=0)).flatten() for linear, x in pairs]
    count = len(PRUNABLE_LINEARS)
    layers = [torch.cat(sizes[count * layer : count * (layer + 1)]) for layer in range(LAYERS)]
    expected = [(layer > 3 * layer.mean()).double().mean() for layer in layers]
    got = outlier_ratios(model, TEXT, factor=3.0)
    torch.testing.assert_close(got, torch.stack(expected), rtol=1e-3, atol=0)
    assert bool((got > 0).all()) and len(got.unique()) == LAYERS


def test_random_scores_are_a_permutation_of_the_seed() -> None:
    scores = random_scores(UNITS, seed=3)
    assert torch.equal(scores, random_scores(UNITS, seed=3))
    assert not torch.equal(scores, random_scores(UNITS, seed=4))
    steps = scores.sort().values * UNITS.size
    assert torch.equal(steps.round(), torch.arange(UNITS.size).double())


@pytest.mark.parametrize("name", CRITERIA)
def test_each_criterion_scores_every_unit_and_leaves_the_model_alone(name: str) -> None:
    model = frozen("qwen3")
    before = copy.deepcopy(model.state_dict())
    progress: list[tuple[int, int]] = []
    text = CalibrationText(SEQUENCES, 2, lambda done, total: progress.append((done, total)))
    scores = criterion_scores(name, model, UNITS, text, seed=0)
    assert scores.shape == (UNITS.size,)
    assert scores.dtype == torch.float32
    assert len(scores.unique()) > UNITS.size / 2
    assert name not in ADDITIVE or bool((scores >= 0).all())
    reads_text = name not in ("random", "magnitude")
    layers = len(UNITS.segment_sizes) if name == "obs" else 0  # solved one after the other
    steps = (2, 4, 5, *range(6, 6 + layers)) if reads_text else ()
    assert progress == [(step, 5 + layers) for step in steps]
    assert hooks_of(model) == 0
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", [name for name in CRITERIA if name != "random"])
def test_a_unit_that_does_nothing_scores_lowest_in_its_layer(name: str) -> None:
    model = frozen()
    with torch.no_grad():
        layer = model.model.layers[1]
        layer.mlp.gate_proj.weight[5] = layer.mlp.up_proj.weight[5] = 0
        layer.mlp.down_proj.weight[:, 5] = 0
        layer.self_attn.o_proj.weight[:, GROUP_WIDTH:] = 0
        layer.self_attn.v_proj.weight[32:] = 0
    scores = criterion_scores(name, model, UNITS, TEXT, seed=0)
    assert int(scores[UNITS.ffn(1)].argmin()) == 5
    assert int(scores[UNITS.kv(1)].argmin()) == 1


@pytest.mark.parametrize("name", ["magnitude", "flap", "wanda-structured"])
def test_scores_that_are_no_numbers_are_refused(name: str) -> None:
    model = frozen()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = torch.inf
    with pytest.raises(LossError, match=f"the {name} scores are not finite"):
        criterion_scores(name, model, UNITS, TEXT, seed=0)
