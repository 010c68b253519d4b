"""Criteria that read weights and inputs, each against its formula written out for one unit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grasp_deploy.pruning.criteria import ADDITIVE, CRITERIA, criterion_scores
from grasp_deploy.pruning.criteria.from_moments import flap_scores, wanda_structured_scores
from grasp_deploy.pruning.criteria.outliers import outlier_ratios
from grasp_deploy.pruning.criteria.without_text import magnitude_scores, random_scores
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.hooks import on_inputs
from grasp_deploy.pruning.layout import coupled_linears, output_projections
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.criteria.cases import SEQUENCES, TEXT, score_by_hand
from tests.pruning.tiny_units import CHANNELS, GROUP_WIDTH, GROUPS, LAYERS, UNITS, frozen, hooks_of
from tests.tiny import random_kept, slice_by_hand


def inputs_by_hand(model: PreTrainedModel, linears: list[nn.Linear]) -> list[Tensor]:
    """`(tokens, width)` inputs of linear layers over all blocks, float64."""
    inputs: dict[int, Tensor] = {}
    with on_inputs(linears, lambda index, x: inputs.update({index: x.flatten(0, 1).double()})):
        model(input_ids=SEQUENCES)
    return [inputs[index] for index in range(len(linears))]


def per_unit(columns: Tensor, segment: int) -> Tensor:
    return columns.view(GROUPS if segment % 2 else CHANNELS, -1)


@pytest.mark.parametrize("name", ["llama", "llama-biases", "qwen2-tied", "qwen3"])
def test_magnitude_is_the_squared_norm_of_all_that_goes_with_a_unit(name: str) -> None:
    model = frozen(name)
    values = {key: value.detach().square() for key, value in model.named_parameters()}
    expected = score_by_hand(model, values, lambda part: part.sum())
    torch.testing.assert_close(magnitude_scores(model, UNITS).float(), expected)


def test_a_units_weights_are_all_that_slicing_takes() -> None:
    model = frozen("llama-biases")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1)
    counts = magnitude_scores(model, UNITS)
    channel, group = 3 * 64 + 2, 32 * (6 * 64 + 4)  # with the biases of gate, up and of q, k, v
    assert counts.tolist() == ([channel] * CHANNELS + [group] * GROUPS) * LAYERS


def test_flap_is_the_standardised_fluctuation_times_the_columns_norms() -> None:
    model = frozen()
    linears = list(output_projections(model).values())
    expected = []
    for segment, (linear, x) in enumerate(
        zip(linears, inputs_by_hand(model, linears), strict=True)
    ):
        distances = x - x.mean(0)
        wifv = distances.square().sum(0) / (len(x) - 1) * linear.weight.double().square().sum(0)
        standard = (wifv - wifv.mean()) / (wifv - wifv.mean()).square().mean().sqrt()
        standard *= ((len(wifv) - 1) / len(wifv)) ** 0.5
        expected.append(per_unit(standard, segment).mean(1))
    got = flap_scores(model, UNITS, TEXT)
    torch.testing.assert_close(got, torch.cat(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["flap", "wanda-structured"])
def test_removed_units_do_not_bend_the_scores_of_those_left(name: str) -> None:
    """Behind gates the scores are those of the model that was really cut."""
    scores = {"flap": flap_scores, "wanda-structured": wanda_structured_scores}[name]
    model = frozen()
    kept = random_kept(model.config)
    masks = []
    for groups, channels in kept:
        for size, stays in ((CHANNELS, channels), (GROUPS, groups)):
            masks.append(torch.zeros(size).index_fill(0, torch.tensor(stays), 1.0))
    mask = torch.cat(masks)
    with gated(model, UNITS, GROUP_WIDTH) as gates:
        gates.assign(mask)
        behind = scores(model, UNITS, TEXT)
    left = UnitTable.of_layers([(len(channels), len(groups)) for groups, channels in kept])
    cut = scores(slice_by_hand(model, kept), left, TEXT)
    torch.testing.assert_close(behind[mask.bool()], cut, rtol=1e-4, atol=1e-5)


def test_wanda_sums_weights_times_input_norms_over_a_units_columns() -> None:
    model = frozen()
    linears = list(output_projections(model).values())
    expected = []
    for segment, (linear, x) in enumerate(
        zip(linears, inputs_by_hand(model, linears), strict=True)
    ):
        sizes = linear.weight.double().abs() * x.square().sum(0).sqrt()
        sums = per_unit(sizes.sum(0), segment).sum(1)
        expected.append(sums / sums.mean())
    got = wanda_structured_scores(model, UNITS, TEXT)
    torch.testing.assert_close(got, torch.cat(expected), rtol=1e-5, atol=0)


def test_outliers_are_counted_over_all_prunable_weights_of_a_layer() -> None:
    model = frozen()
    coupled = list(coupled_linears(model))
    linears = [one.linear for one in coupled]
    inputs = inputs_by_hand(model, linears)
    expected = []
    for layer in range(LAYERS):
        sizes = torch.cat(
            [
                (one.linear.weight.double().abs() * x.norm(dim=0)).flatten()
                for one, x in zip(coupled, inputs, strict=True)
                if one.segment // 2 == layer
            ]
        )
        expected.append((sizes > 3 * sizes.mean()).double().mean())
    got = outlier_ratios(model, SEQUENCES, 2, factor=3.0)
    torch.testing.assert_close(got, torch.stack(expected), rtol=1e-3, atol=0)
    assert bool((got > 0).all()) and len(got.unique()) == LAYERS
    assert bool((outlier_ratios(model, SEQUENCES, 2) < got).all())


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
    scores = criterion_scores(
        name,
        model,
        UNITS,
        SEQUENCES,
        batch_size=2,
        seed=0,
        on_batch=lambda done, total: progress.append((done, total)),
    )
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
    dead = UNITS.ffn(1).start + 5, UNITS.kv(1).start + 1
    values = torch.ones(UNITS.size)
    values[list(dead)] = 0
    with torch.no_grad():
        layer = model.model.layers[1]
        for linear, rows in ((layer.mlp.gate_proj, [5]), (layer.mlp.up_proj, [5])):
            linear.weight[rows] = 0
        layer.mlp.down_proj.weight[:, 5] = 0
        layer.self_attn.o_proj.weight[:, GROUP_WIDTH:] = 0
        layer.self_attn.v_proj.weight[32:] = 0
        logits = model(input_ids=SEQUENCES).logits
        with gated(model, UNITS, GROUP_WIDTH) as gates:
            gates.assign(values)
            assert torch.equal(model(input_ids=SEQUENCES).logits, logits)
    scores = criterion_scores(name, model, UNITS, SEQUENCES, batch_size=5, seed=0)
    for unit, segment in zip(dead, (UNITS.ffn(1), UNITS.kv(1)), strict=True):
        assert int(scores[segment].argmin()) + segment.start == unit


def test_an_unknown_criterion_is_refused() -> None:
    with pytest.raises(ValueError, match="'best': choose one of random, magnitude, "):
        criterion_scores("best", frozen(), UNITS, SEQUENCES, batch_size=1, seed=0)


@pytest.mark.parametrize("name", ["magnitude", "flap", "wanda-structured"])
def test_scores_that_are_no_numbers_are_refused(name: str) -> None:
    model = frozen()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = torch.inf
    with pytest.raises(ValueError, match=f"the {name} scores are not finite"):
        criterion_scores(name, model, UNITS, SEQUENCES, batch_size=5, seed=0)
