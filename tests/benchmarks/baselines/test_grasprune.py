"""The paper's recipe learns, and its noise is Gumbel's."""

import pytest
import torch

from benchmarks.baselines import grasprune
from benchmarks.baselines.one_shot import Method
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.projection import project
from tests.pruning.criteria.cases import SEQUENCES
from tests.pruning.tiny_units import BUDGET, frozen, hooks_of

METHODS: list[Method] = [grasprune.paper, grasprune.gumbel_topk, grasprune.paper_per_cost]


def test_each_way_comes_to_a_mask_of_its_own() -> None:
    model = frozen()
    steps: list[tuple[int, int]] = []
    text = CalibrationText(SEQUENCES, 1, lambda done, total: steps.append((done, total)))
    found = [method(model, BUDGET, text) for method in METHODS]
    assert steps == [(step, 20) for step in range(1, 21)] * 3, "four epochs of five sequences"
    assert all(bool((scores > 0).all() & (scores < 1).all()) for scores in found)
    masks = {tuple(project(scores, BUDGET).tolist()) for scores in found}
    assert len(masks) == 3 and not hooks_of(model)


def test_gumbel_noise_has_gumbels_mean_and_variance() -> None:
    noise = grasprune.gumbel_noise(torch.zeros(200_000), seed=3, step=5)
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(torch.pi**2 / 6, rel=0.02)
