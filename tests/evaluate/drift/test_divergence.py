"""KL, agreement and losses against figures by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.drift import divergence as module
from grasp_deploy.evaluate.drift.divergence import mean_drift, token_drift
from grasp_deploy.files.progress import ignore_progress
from tests.tiny import tiny_model

IDS = torch.randint(97, (5, 12), generator=torch.Generator().manual_seed(1))


def test_one_token_by_hand() -> None:
    dense, pruned = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.25, 0.5, 0.25]]).log()
    divergence, agrees, before, after = token_drift(dense, pruned + 3, torch.tensor([1]))[0]
    assert divergence == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2))
    assert agrees == 0 and token_drift(dense, dense + 1, torch.tensor([2]))[0, 1] == 1
    assert before == pytest.approx(math.log(4)) and after == pytest.approx(math.log(2))
    other_way = token_drift(torch.tensor([[0.9, 0.1]]).log(), torch.zeros(1, 2), torch.tensor([0]))
    assert other_way[0, 0] == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))


def test_batches_and_slices_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, pruned = (tiny_model("llama", seed, vocab_size=97) for seed in (0, 1))
    with torch.no_grad():
        p, q = (model(IDS).logits[:, :-1].double().log_softmax(-1) for model in (dense, pruned))
    expected = (p.exp() * (p - q)).sum(-1).mean(-1)
    agreement = (p.argmax(-1) == q.argmax(-1)).double().mean(-1)
    loss = -q.gather(-1, IDS[:, 1:, None]).mean((1, 2))
    for batch_size, positions in ((1, 256), (2, 4), (5, 1)):
        monkeypatch.setattr(module, "POSITIONS_IN_FLOAT32", positions)
        rows = list[dict[str, Any]]()
        means = mean_drift(dense, pruned, IDS, batch_size, rows.append, "c4")
        for column, wanted in ((0, expected), (1, agreement), (3, loss)):
            assert torch.allclose(means[:, column], wanted, atol=1e-5)
        assert rows[-1]["step"] == rows[-1]["steps"] == 5
        assert rows[-1]["distance"] == pytest.approx(float(expected.mean()), abs=1e-5)


def test_a_model_has_not_drifted_from_itself() -> None:
    model = tiny_model("llama", vocab_size=97)
    means = mean_drift(model, model, IDS, 2, ignore_progress, "c4")
    assert torch.equal(means[:, 0], torch.zeros(5).double())
    assert torch.equal(means[:, 1], torch.ones(5).double())
    assert torch.equal(means[:, 2], means[:, 3])


def test_a_model_that_overflows_stops_at_once() -> None:
    dense, broken = tiny_model("llama", vocab_size=97), tiny_model("llama", vocab_size=97)
    with torch.no_grad():
        broken.lm_head.weight.mul_(math.inf)
    with pytest.raises(InputError, match=r"not finite after 2 of 5 .* --dtype float32"):
        mean_drift(dense, broken, IDS, 2, ignore_progress, "c4")
