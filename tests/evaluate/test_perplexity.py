"""Perplexity against a naive reference, its errors, and the figures of the reference model."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from grasp_deploy.data import Blocks, Documents, TextSource, read_blocks
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate import perplexity as module
from grasp_deploy.evaluate.perplexity import perplexity, scored_bytes, spans, windows_of
from tests.tiny import tiny_model, tiny_tokenizer

SHARED = Path(__file__).parents[2].parent / "shared"
NOISE = TextSource("noise")


@pytest.fixture
def model() -> PreTrainedModel:
    return tiny_model("llama", vocab_size=97, max_position_embeddings=64)


def random_ids(*shape: int) -> Tensor:
    return torch.randint(97, shape, generator=torch.Generator().manual_seed(1))


def random_blocks(sequences: int = 5, sequence_length: int = 12) -> Blocks:
    return Blocks(random_ids(sequences, sequence_length), NOISE, documents=1)


def documents_of(*lengths: int, sequence_length: int) -> Documents:
    return Documents([random_ids(n) for n in lengths], NOISE, 0, sequence_length)


def naive_losses(model: PreTrainedModel, tokens: Tensor, first: int = 1) -> list[float]:
    """The loss of each token from `first` on, given all before it."""
    losses = []
    for position in range(first, len(tokens)):
        with torch.no_grad():
            logits = model(tokens[None, :position]).logits[0, -1]
        losses.append(-logits.double().log_softmax(0)[tokens[position]].item())
    return losses


def test_equals_the_naive_reference(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = random_blocks()
    by_hand = [naive_losses(model, sequence) for sequence in blocks.token_ids]
    means = [statistics.fmean(losses) for losses in by_hand]
    for batch_size, chunk in ((1, 256), (2, 7), (5, 1), (8, 4)):
        monkeypatch.setattr(module, "POSITIONS_IN_FLOAT32", chunk)
        result = perplexity(model, blocks, batch_size)
        assert result.cluster_losses == pytest.approx(means, abs=1e-5)
        assert result.loss_nats_per_token == pytest.approx(statistics.fmean(means), abs=1e-5)
        error = statistics.stdev(means) / math.sqrt(5)
        assert result.standard_error == pytest.approx(error, rel=1e-4)
        assert (result.tokens, result.dtype) == (5 * 11, "float32")
    model.bfloat16()
    with torch.no_grad():
        scores = model(blocks.token_ids).logits[:, :-1].double().log_softmax(-1)
    wanted = -scores.gather(-1, blocks.token_ids[:, 1:, None]).mean().item()
    result = perplexity(model, blocks, batch_size=5)  # summed in float32 all the same
    assert result.loss_nats_per_token == pytest.approx(wanted, abs=1e-5)


def test_record_is_json_and_says_what_was_counted(model: PreTrainedModel) -> None:
    result = perplexity(model, random_blocks())
    record = json.loads(json.dumps(result.as_dict()))
    assert record["perplexity"] == pytest.approx(math.exp(record["loss_nats_per_token"]))
    low, high = record["perplexity_interval"]
    assert low < record["perplexity"] < high
    assert math.log(high / low) == pytest.approx(2 * 1.96 * record["standard_error"])
    assert record["bits_per_byte"] is record["bytes"] is None  # no tokenizer, no text
    assert record["tokens"] == 5 * 11 and record["dtype"] == "float32" and record["seconds"] > 0
    counted = "positions 2 to 12 of each of 5 sequences of 12 tokens, every one given all before"
    assert record["tokens_counted"].startswith(counted)
    assert record["data"] == {**random_blocks().as_dict(), "stride": 12}
    assert "mean_over_documents" not in record
    assert perplexity(model, random_blocks(1)).as_dict()["standard_error"] is None


def test_progress_is_the_mean_so_far(model: PreTrainedModel) -> None:
    blocks, seen = random_blocks(), list[dict[str, Any]]()
    result = perplexity(model, blocks, 2, seen.append, stage="c4, dense")
    assert [(row["stage"], row["step"], row["steps"]) for row in seen] == [
        ("c4, dense", step, 5) for step in (2, 4, 5)
    ]
    assert seen[0]["loss"] == pytest.approx(statistics.fmean(result.cluster_losses[:2]))
    assert seen[-1]["loss"] == result.loss_nats_per_token


@pytest.mark.parametrize(
    ("factor", "loss"), [(math.nan, "nan"), (math.inf, "nan|inf"), (1e5, r".*e\+.*")]
)
def test_a_loss_without_perplexity_stops_at_once(
    model: PreTrainedModel, factor: float, loss: str
) -> None:
    seen: list[dict[str, Any]] = []
    with torch.no_grad():
        model.lm_head.weight.mul_(factor)
    words = rf"the loss is ({loss}) after 2 of 5 windows, so there is no .*; try --dtype float32"
    with pytest.raises(InputError, match=words):
        perplexity(model, random_blocks(), 2, seen.append)
    assert not seen


def test_sliding_windows_equal_the_naive_reference(model: PreTrainedModel) -> None:
    blocks = random_blocks(3, 8)
    text = blocks.token_ids.flatten()
    expected = naive_losses(model, text[:8])
    for end in (11, 14, 17, 20, 23):
        expected += naive_losses(model, text[end - 8 : end], first=5)
    expected += naive_losses(model, text[16:24], first=7)  # what is left
    result = perplexity(model, blocks, batch_size=2, stride=3)
    assert result.tokens == len(expected) == 23
    assert result.loss_nats_per_token == pytest.approx(sum(expected) / 23, abs=1e-5)
    assert result.data["stride"] == 3
    assert result.tokens_counted.startswith("every token but the first of 24 tokens")
    assert "given the 5 to 7 before it" in result.tokens_counted
    plain, whole = perplexity(model, blocks), perplexity(model, blocks, stride=8)
    assert whole.cluster_losses == plain.cluster_losses
    assert whole.tokens_counted == plain.tokens_counted


@given(tokens=st.integers(2, 60), length=st.integers(2, 20), data=st.data())
def test_every_token_is_scored_once_given_as_much_as_fits(
    tokens: int, length: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, length))
    scored: list[int] = []
    for start, end, count in spans(tokens, length, stride):
        assert 0 <= start < end - count <= end <= tokens
        assert end - start == min(length, tokens)
        scored += range(end - count, end)
    left_out = set(range(tokens)) - set(scored)
    assert len(scored) == len(set(scored))
    if stride < length:
        assert left_out == {0}
    else:  # the first token of each whole window has nothing before it
        assert left_out == set(range(0, tokens // length * length or 1, length))


def test_windows_belong_to_the_sequence_or_document_in_which_they_end() -> None:
    assert spans(10, 6, 2) == [(0, 6, 5), (2, 8, 2), (4, 10, 2)]  # the drawing of the module
    windows = windows_of(random_blocks(3, 8), 8, 4)
    assert [window.cluster for window in windows] == [0, 1, 1, 2, 2]
    windows = windows_of(documents_of(5, 20, 2, sequence_length=8), 8, 8)
    assert [window.cluster for window in windows] == [0, 1, 1, 1, 2]


def test_bits_per_byte_count_the_bytes_of_what_is_scored(demo_model: Path) -> None:
    # A byte is a token, so the bytes are the tokens and bits per byte is bits per token.
    text = "naïve cafés, 34 €"
    blocks = Blocks(torch.tensor([[*text.encode()]]), NOISE, 1)
    result = perplexity(tiny_model("llama"), blocks, tokenizer=tiny_tokenizer())
    assert result.bytes == result.tokens == len(text.encode()) - 1
    assert result.bits_per_byte == pytest.approx(result.loss_nats_per_token / math.log(2))
    tokenizer = AutoTokenizer.from_pretrained(demo_model)  # of longer tokens
    story = "Once upon a time there was a little bear. " * 8
    ids = torch.tensor(tokenizer(story, add_special_tokens=False)["input_ids"])[:64]
    windows = windows_of(Blocks(ids.view(-1, 8), NOISE, 1), 8, stride=3)
    assert scored_bytes(tokenizer, windows) == len(str(tokenizer.decode(ids[1:])).encode())


def test_documents_are_taken_alone(model: PreTrainedModel) -> None:
    documents = documents_of(7, 2, 11, 5, sequence_length=16)
    by_document = [naive_losses(model, ids) for ids in documents.running_texts]
    result = perplexity(model, documents, batch_size=3)
    every = [loss for losses in by_document for loss in losses]
    assert result.tokens == len(every) == 6 + 1 + 10 + 4
    mean = statistics.fmean(every)
    assert result.loss_nats_per_token == pytest.approx(mean, abs=1e-5)
    # The error of a ratio of sums, linearised, over four clusters.
    squares = [(sum(losses) - mean * len(losses)) ** 2 for losses in by_document]
    error = math.sqrt(4 / 3 * sum(squares)) / 21
    assert result.standard_error == pytest.approx(error, rel=1e-4)
    means = [statistics.fmean(losses) for losses in by_document]
    record = json.loads(json.dumps(result.as_dict()))
    assert record["mean_over_documents"] == {
        "perplexity": pytest.approx(math.exp(statistics.fmean(means)), rel=1e-5),
        "loss_nats_per_token": pytest.approx(statistics.fmean(means), abs=1e-5),
        "standard_error": pytest.approx(statistics.stdev(means) / 2, rel=1e-4),
    }
    data = record["data"]
    assert (data["documents"], data["sequence_length"], data["stride"]) == (4, 16, 16)


def test_a_long_document_is_cut_into_windows(model: PreTrainedModel) -> None:
    documents = documents_of(20, 3, sequence_length=8)
    long, short = documents.running_texts
    apart = naive_losses(model, long[:8]) + naive_losses(model, long[8:16])
    apart += naive_losses(model, long[12:20], first=4) + naive_losses(model, short)
    result = perplexity(model, documents, batch_size=2)
    assert result.tokens == len(apart) == 7 + 7 + 4 + 2
    assert result.loss_nats_per_token == pytest.approx(statistics.fmean(apart), abs=1e-5)
    slid = perplexity(model, documents, stride=4)
    assert slid.tokens == 19 + 2  # a window reaches back, so only a document's first is left out


def test_text_that_does_not_fit_the_model(model: PreTrainedModel) -> None:
    with pytest.raises(InputError, match=r"of 65 tokens .* 64 positions .*--sequence-length 64"):
        perplexity(model, random_blocks(1, 65))
    with pytest.raises(InputError, match=r"gave token 97, .* has only 97"):
        perplexity(model, Blocks(torch.tensor([[3, 97]]), NOISE, 1))
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
