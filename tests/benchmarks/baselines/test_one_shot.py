"""Baselines that read weights and inputs, each against its formula written out for one unit."""

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks.baselines import one_shot
from benchmarks.baselines.one_shot import Method
from benchmarks.quality import BASELINES, STUDIES
from grasp_deploy.compression.own_function import own_function
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.layout import on_inputs, output_projections
from tests.pruning.criteria.cases import SEQUENCES, TEXT, score_by_hand
from tests.pruning.tiny_units import (
    BUDGET,
    COSTS,
    GROUP_WIDTH,
    UNITS,
    frozen,
    hooks_of,
)

READING: list[Method] = [one_shot.taylor_vector, one_shot.taylor_element, one_shot.taylor_gate]
READING += [one_shot.flap, one_shot.wanda_structured, one_shot.obs]


def inputs_by_hand(model: PreTrainedModel, linears: list[nn.Linear]) -> list[Tensor]:
    """`(tokens, width)` inputs of linear layers over all sequences, float64."""
    inputs: dict[int, Tensor] = {}
    numbered = dict(enumerate(linears))
    with on_inputs(numbered, lambda i, x: inputs.update({i: x.flatten(0, 1).double()})):
        model(input_ids=SEQUENCES)
    return [inputs[index] for index in range(len(linears))]


@pytest.mark.parametrize("name", ["llama-biases", "qwen2-tied"])
def test_magnitude_is_the_squared_norm_of_all_that_goes_with_a_unit(name: str) -> None:
    model = frozen(name)
    values = {key: value.detach().square() for key, value in model.named_parameters()}
    expected = score_by_hand(values, lambda part: part.sum())
    torch.testing.assert_close(one_shot.magnitude(model, BUDGET, TEXT) * COSTS, expected)


def test_flap_and_wanda_are_their_papers_formulas() -> None:
    model = frozen()
    linears = [*output_projections(model).values()]
    flap, wanda = [], []
    parts = zip(linears, inputs_by_hand(model, linears), UNITS.segment_sizes, strict=True)
    for linear, x, size in parts:
        weight = linear.weight.double()
        wifv = x.var(0) * weight.square().sum(0)
        flap.append(((wifv - wifv.mean()) / wifv.std()).view(size, -1).mean(1))
        sums = (weight.abs() * x.norm(dim=0)).sum(0).view(size, -1).sum(1)
        wanda.append(sums / sums.mean())
    got = one_shot.flap(model, BUDGET, TEXT).double()
    torch.testing.assert_close(got, torch.cat(flap), rtol=1e-4, atol=1e-5)
    got = one_shot.wanda_structured(model, BUDGET, TEXT).double()
    torch.testing.assert_close(got, torch.cat(wanda), rtol=1e-5, atol=0)


@pytest.mark.parametrize("method", READING)
def test_each_reads_an_eighth_of_a_run_and_leaves_the_model_alone(method: Method) -> None:
    model = frozen("qwen3")
    before = copy.deepcopy(model.state_dict())
    progress: list[tuple[int, int]] = []
    text = CalibrationText(
        SEQUENCES.repeat(48, 1), 8, lambda done, total: progress.append((done, total))
    )
    scores = method(model, BUDGET, text)
    assert scores.shape == (UNITS.size,) and bool(scores.isfinite().all())
    assert len(scores.unique()) > UNITS.size / 2
    assert progress[3][0] == 32, "of 240, which are fifteen sixteenths of 256"
    assert progress[-1][0] == progress[-1][1]
    assert hooks_of(model) == 0
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("method", [*READING, one_shot.magnitude])
def test_a_unit_that_does_nothing_scores_lowest_in_its_layer(method: Method) -> None:
    model = frozen()
    with torch.no_grad():
        layer = model.model.layers[1]
        layer.mlp.gate_proj.weight[5] = layer.mlp.up_proj.weight[5] = 0
        layer.mlp.down_proj.weight[:, 5] = 0
        layer.self_attn.o_proj.weight[:, GROUP_WIDTH:] = 0
        layer.self_attn.v_proj.weight[32:] = 0
    scores = method(model, BUDGET, TEXT)
    assert int(scores[UNITS.ffn(1)].argmin()) == 5
    assert int(scores[UNITS.kv(1)].argmin()) == 1


def test_every_baseline_of_a_study_is_there() -> None:
    variants = [variant for study in STUDIES.values() for variant in study]
    methods = {variant.options.get("method", "") for variant in variants}
    named = [method for method in methods if method.startswith(BASELINES)]
    assert len(named) == 8 + 3 + 2
    assert all(callable(own_function(f"--method {method}", "")) for method in named)
