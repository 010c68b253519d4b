"""Distillation: the divergence and its gradient, and a student that comes near to its teacher."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grasp_deploy.pruning import distilling
from grasp_deploy.pruning.distilling import DensePredictions, Distiller, Divergence
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.objective import LossError, mean_loss
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule
from grasp_deploy.pruning.training import LearningState, learn_scales
from grasp_deploy.pruning.units import UnitTable
from tests.pruning.tiny_units import frozen, generator, token_ids
from tests.tiny import VARIANTS, tiny_model

STEPS, RATE = 40, 3e-3


def states(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=generator(sum(sizes)))


@pytest.mark.parametrize("at_once", [40, 2**20], ids=["in chunks", "at once"])
def test_the_divergence_and_its_gradient_are_those_of_whole_logits(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distilling, "LOGITS_AT_ONCE", at_once)
    head, expected = states(11, 6), states(7, 6)
    chunked, whole = (states(7, 6).requires_grad_() for _ in range(2))
    found = Divergence.apply(chunked, expected, head)
    predicted, wanted = (F.log_softmax(x @ head.T, -1) for x in (whole, expected))
    reference = F.kl_div(predicted, wanted, log_target=True, reduction="batchmean")
    (3 * found).backward()
    (3 * reference).backward()
    torch.testing.assert_close(found, reference)
    torch.testing.assert_close(chunked.grad, whole.grad)


@pytest.mark.parametrize("name", ["llama-biases", "granite"])  # which scales its logits
def test_scales_learn_what_the_dense_model_predicts(name: str) -> None:
    """Of text that they are measured on; from the divergence of whole logits, and to less of it."""
    model: Any = tiny_model(**VARIANTS[name]).requires_grad_(False)
    blocks = CalibrationBlocks(token_ids(6, 12), token_ids(3, 12))
    schedule = Schedule(blocks, epochs=8, batch_size=2, learning_rate=0.02, seed=0)
    predictions = DensePredictions(model, blocks.rows)
    for batch in schedule.batches(0):
        predictions.read(batch)
    assert float(predictions.divergence(torch.arange(9))) == pytest.approx(0, abs=1e-6)
    wanted = F.log_softmax(model(blocks.heldout).logits, -1)
    units = UnitTable.of_layers(
        [
            (x.mlp.down_proj.in_features, x.self_attn.config.num_key_value_heads)
            for x in model.model.layers
        ]
    )
    mask = torch.arange(units.size) % 3 > 0
    with gated(model, units) as gates:
        gates.assign(mask.float())
        predicted = F.log_softmax(model(blocks.heldout).logits, -1)
    expected = F.kl_div(
        predicted.flatten(0, 1), wanted.flatten(0, 1), log_target=True, reduction="batchmean"
    )
    state = LearningState(torch.ones(units.size), 0.02)
    losses = [
        record.heldout_loss
        for record in learn_scales(model, units, mask, schedule, state, predictions.divergence)
        if record.heldout_loss is not None
    ]
    assert losses[0] == pytest.approx(float(expected), rel=1e-4)
    assert state.best_loss < 0.97 * losses[0]


def test_a_batch_whose_rows_were_read_again_is_freed() -> None:
    """Each epoch draws other batches; of the old ones nothing stays."""
    model: Any = frozen()
    predictions = DensePredictions(model, token_ids(4, 12))
    for batch in ([0, 1], [2, 3], [0, 2]):
        predictions.read(torch.tensor(batch))
    kept = [row.untyped_storage() for row in predictions._states.values()]
    size = sum({storage.data_ptr(): len(storage) for storage in kept}.values())
    assert size == 4 * 12 * model.config.hidden_size * 4


def pair(name: str) -> tuple[Any, Any]:
    """A dense model, and one whose weights were disturbed."""
    teacher: Any = tiny_model(**VARIANTS[name]).requires_grad_(False)
    student = copy.deepcopy(teacher)
    student.model.embed_tokens = student.lm_head = nn.Identity()
    for number, weight in enumerate(student.parameters()):
        weight += 0.1 * weight.std() * torch.randn(weight.shape, generator=generator(number))
        weight.requires_grad_(True)
    return teacher, student


# Granite scales its logits, Gemma its embeddings
@pytest.mark.parametrize("name", ["llama-biases", "granite", "gemma3-sliding"])
def test_a_student_comes_near_and_goes_on_bit_for_bit(name: str) -> None:
    teacher, student = pair(name)
    batches, heldout = token_ids(8 * STEPS, 16).split(8), token_ids(4, 24)
    whole = Distiller(teacher, student)
    before = whole.measure(heldout)
    expected = mean_loss(teacher, heldout, 1)
    assert float(before.dense_loss.mean()) == pytest.approx(expected, rel=1e-5)
    for step, ids in enumerate(batches):
        if step == STEPS // 2:
            saved = copy.deepcopy(whole.state())
        whole.learn(ids, RATE, step)
    after = whole.measure(heldout)
    assert float(after.divergence.mean()) < 0.8 * float(before.divergence.mean())

    resumed = Distiller(*pair(name))
    resumed.restore(saved, STEPS // 2)
    for step, ids in enumerate(batches[STEPS // 2 :], start=STEPS // 2):
        resumed.learn(ids, RATE, step)
    for key, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[key]), key


def test_each_weight_moves_by_a_share_of_its_size() -> None:
    """Adam's first step is the rate itself, for every element with a gradient."""
    teacher, student = pair("llama-biases")
    bias = student.model.layers[0].self_attn.o_proj.bias
    with torch.no_grad():
        bias.zero_()
    before = {n: w.detach().clone() for n, w in student.named_parameters()}
    distiller = Distiller(teacher, student)
    distiller.learn(token_ids(2, 16), 0.01, 0)
    for name, part in distiller.parts.items():
        size = max(1e-3, float(before[name].square().mean().sqrt()))
        step = float((part - before[name]).abs().max())
        assert step == pytest.approx(0.01 * size, rel=0.02), name


def test_a_divergence_that_is_not_finite_changes_nothing() -> None:
    teacher, student = pair("llama-biases")
    distiller = Distiller(teacher, student)
    before = copy.deepcopy(distiller.state())
    teacher.lm_head.weight[0] = torch.inf
    with pytest.raises(LossError, match="of the recovery stage is nan at step 6"):
        distiller.learn(token_ids(2, 16), 1e-3, 5)
    for key, tensor in distiller.state().items():
        assert torch.equal(tensor, before[key]), key
