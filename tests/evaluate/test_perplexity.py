"""Losses, divergences and agreement against naive references, and the reference model's figure."""

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from grasp_deploy.data import Blocks, TextSource, read_blocks
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate import perplexity as module
from grasp_deploy.evaluate.perplexity import measure, perplexity, token_figures
from tests.tiny import logits_of, tiny_model

SHARED = Path(__file__).parents[2].parent / "shared"
NOISE = TextSource("noise")


def model_of(seed: int = 0) -> PreTrainedModel:
    return tiny_model("llama", seed, vocab_size=97, max_position_embeddings=64)


@pytest.fixture
def model() -> PreTrainedModel:
    return model_of()


def random_blocks(sequences: int = 5, sequence_length: int = 12) -> Blocks:
    draw = torch.Generator().manual_seed(1)
    return Blocks(torch.randint(97, (sequences, sequence_length), generator=draw), NOISE)


def test_one_token_by_hand() -> None:
    dense, pruned = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.25, 0.5, 0.25]]).log()
    first, second = token_figures(torch.tensor([1]), dense, pruned + 3)[0].tolist()
    assert first == pytest.approx([math.log(4), 0, 1])
    assert second == pytest.approx([math.log(2), 0.5 * math.log(2) - 0.25 * math.log(2), 0])
    other_way = token_figures(
        torch.tensor([0]), torch.tensor([[0.9, 0.1]]).log(), torch.zeros(1, 2)
    )
    assert other_way[0, 1, 1] == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))


def test_equals_the_naive_reference(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, by_hand = random_blocks(), []
    for sequence in blocks.token_ids:
        losses = []
        for position in range(1, len(sequence)):
            logits = logits_of(model, sequence[None, :position])[0, -1]
            losses.append(-logits.double().log_softmax(0)[sequence[position]].item())
        by_hand.append(statistics.fmean(losses))
    for batch_size, chunk in ((1, 256), (2, 7), (5, 1), (8, 4)):
        monkeypatch.setattr(module, "POSITIONS_IN_FLOAT32", chunk)
        result = perplexity(model, blocks, batch_size)
        assert result.losses == pytest.approx(by_hand, abs=1e-5)
        assert result.loss_nats_per_token == pytest.approx(statistics.fmean(by_hand), abs=1e-5)
        error = statistics.stdev(by_hand) / math.sqrt(5)
        assert result.as_dict()["standard_error"] == pytest.approx(error, rel=1e-4)
        assert result.perplexity == pytest.approx(math.exp(result.loss_nats_per_token))
        assert (result.tokens, result.dtype) == (5 * 11, "float32")
    model.bfloat16()
    scores = logits_of(model, blocks.token_ids)[:, :-1].double().log_softmax(-1)
    wanted = -scores.gather(-1, blocks.token_ids[:, 1:, None]).mean().item()
    result = perplexity(model, blocks, batch_size=5)  # summed in float32 all the same
    assert result.loss_nats_per_token == pytest.approx(wanted, abs=1e-5)
    assert perplexity(model, random_blocks(1)).as_dict()["standard_error"] is None


def test_models_side_by_side(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    other, blocks = model_of(seed=1), random_blocks()
    both = (logits_of(each, blocks.token_ids)[:, :-1] for each in (model, other))
    p, q = (logits.double().log_softmax(-1) for logits in both)
    divergence = (p.exp() * (p - q)).sum(-1).mean(-1).tolist()
    agreement = (p.argmax(-1) == q.argmax(-1)).double().mean(-1).tolist()
    for batch_size, chunk in ((1, 256), (2, 4), (5, 1)):
        monkeypatch.setattr(module, "POSITIONS_IN_FLOAT32", chunk)
        first, second = measure([model, other], blocks, batch_size)
        assert second.divergences == pytest.approx(divergence, abs=1e-5)
        assert second.agreements == pytest.approx(agreement)
        for side_by_side, alone in ((first, model), (second, other)):
            assert side_by_side.losses == pytest.approx(perplexity(alone, blocks).losses)
        assert (first.divergences, first.agreements) == ([0.0] * 5, [1.0] * 5)


def test_progress_is_the_mean_so_far(model: PreTrainedModel) -> None:
    blocks, seen = random_blocks(), list[dict[str, Any]]()
    result = perplexity(model, blocks, 2, seen.append, stage="c4, dense")
    assert [(row["stage"], row["step"], row["steps"]) for row in seen] == [
        ("c4, dense", step, 5) for step in (2, 4, 5)
    ]
    assert seen[0]["loss"] == pytest.approx(statistics.fmean(result.losses[:2]))
    assert seen[-1]["loss"] == pytest.approx(result.loss_nats_per_token)


@pytest.mark.parametrize(
    ("factor", "loss"), [(math.nan, "nan"), (math.inf, "nan|inf"), (1e5, r"[^ ]*e\+[^ ]*")]
)
def test_a_loss_without_perplexity_stops_at_once(
    model: PreTrainedModel, factor: float, loss: str
) -> None:
    broken, seen = model_of(), list[dict[str, Any]]()
    with torch.no_grad():
        broken.lm_head.weight.mul_(factor)
    broken.name_or_path = "small"
    words = rf"the loss of small is ({loss}) after 2 of 5 sequences \(c4\): .*; try --dtype float32"
    for models in ([broken], [broken, model], [model, broken]):
        with pytest.raises(InputError, match=words):
            measure(models, random_blocks(), 2, seen.append, stage="c4")
    assert not seen


def test_a_divergence_beyond_all_bounds_is_called_so(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = torch.tensor([[[2.0, 0.0, 1.0], [3.0, 900.0, 0.0]]])
    monkeypatch.setattr(module, "token_figures", lambda targets, *_: figures)
    monkeypatch.setattr(module, "POSITIONS_IN_FLOAT32", 1)
    with pytest.raises(InputError, match=r"the divergence from the first model of .* is 900 "):
        measure([model, model_of(seed=1)], random_blocks())


def test_text_that_does_not_fit_the_model(model: PreTrainedModel) -> None:
    with pytest.raises(InputError, match=r"--sequence-length 65 .* 64 positions"):
        perplexity(model, random_blocks(1, 65))
    with pytest.raises(InputError, match=r"gave token 97, .* has only 97"):
        perplexity(model, Blocks(torch.tensor([[3, 97]]), NOISE))
    with pytest.raises(AssertionError, match="eval mode"):  # a mistake of ours
        perplexity(model.train(), random_blocks())


@pytest.mark.skipif(not SHARED.is_dir(), reason="the reference model in ../shared is absent")
@pytest.mark.slow
def test_the_reference_figure() -> None:
    folder = SHARED / "models" / "ref-llama-7m"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    source = TextSource(str(SHARED / "data" / "wikitext-2" / "wiki.test.raw"))
    result = perplexity(model, read_blocks(tokenizer, source, 512, 80), batch_size=4)
    assert result.tokens == 80 * 511
    assert result.perplexity == pytest.approx(134.44, abs=0.02)
