"""Perplexity against a naive reference, its errors, and the figures of the reference model."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from grasp_deploy.data import Blocks, Documents, TextSource, read_blocks
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate import losses as module
from grasp_deploy.evaluate.losses import OnBatch, window_losses
from grasp_deploy.evaluate.perplexity import document_perplexity, perplexity, scored_bytes
from grasp_deploy.evaluate.windows import block_windows, sliding_windows
from tests.tiny import tiny_model, tiny_tokenizer

SHARED = Path(__file__).parents[2].parent / "shared"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the reference model and texts in ../shared are absent"
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def tiny_llama(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    model: Any = LlamaForCausalLM(config)
    return model.to(dtype).eval()


def mean_loss(
    model: PreTrainedModel, token_ids: Tensor, batch_size: int = 1, on_batch: OnBatch | None = None
) -> float:
    """In nats over the T-1 predicted positions of each of the `(n, T)` blocks."""
    windows = block_windows(token_ids)
    losses = window_losses(model, windows, batch_size, on_batch)
    return math.fsum(losses) / sum(window.scored for window in windows)


def random_blocks(blocks: int = 5, sequence_length: int = 40) -> Blocks:
    generator = torch.Generator().manual_seed(1)
    token_ids = torch.randint(97, (blocks, sequence_length), generator=generator)
    return Blocks(token_ids, TextSource("noise"), documents=1)


def naive_losses(model: LlamaForCausalLM, tokens: torch.Tensor, first: int = 1) -> list[float]:
    """The loss of each token from `first` on, given all before it."""
    losses = []
    for position in range(first, len(tokens)):
        with torch.no_grad():
            logits = model(tokens[None, :position]).logits[0, -1]
        losses.append(-logits.double().log_softmax(0)[tokens[position]].item())
    return losses


def naive_loss(model: LlamaForCausalLM, blocks: Blocks) -> float:
    losses = [loss for block in blocks.token_ids for loss in naive_losses(model, block)]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
@pytest.mark.parametrize("chunk", [1, 7, 256])
def test_equals_the_naive_reference(
    batch_size: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POSITIONS_IN_FLOAT32", chunk)
    model, blocks = tiny_llama(), random_blocks(5, 12)
    result = perplexity(model, blocks, batch_size)
    expected = naive_loss(model, blocks)
    assert result.loss_nats_per_token == pytest.approx(expected, abs=1e-5)
    assert result.perplexity == pytest.approx(math.exp(expected), rel=1e-5)
    assert result.tokens == 5 * 11


def test_bfloat16_logits_are_summed_in_float32() -> None:
    model, blocks = tiny_llama(torch.bfloat16), random_blocks()
    with torch.no_grad():
        logits = model(blocks.token_ids).logits[:, :-1].float()
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), blocks.token_ids[:, 1:].flatten()
    )
    result = perplexity(model, blocks, batch_size=5)
    assert result.dtype == "bfloat16"
    assert result.loss_nats_per_token == pytest.approx(expected.item(), abs=1e-5)


def test_record_is_json_and_says_what_was_counted() -> None:
    record = json.loads(json.dumps(perplexity(tiny_llama(), random_blocks()).as_dict()))
    assert set(record) == {
        "perplexity",
        "perplexity_interval",
        "tokens",
        "tokens_counted",
        "data",
        "loss_nats_per_token",
        "standard_error",
        "bits_per_byte",
        "bytes",
        "dtype",
        "seconds",
    }
    assert record["bits_per_byte"] is None  # no tokenizer, no text
    assert record["tokens"] == 5 * 39
    assert record["tokens_counted"].startswith("positions 2 to 40 of each of 5 blocks of 40 tokens")
    assert record["dtype"] == "float32"
    assert record["data"]["source"] == "noise"
    assert (record["data"]["sequences"], record["data"]["sequence_length"]) == (5, 40)
    assert {"split", "column", "documents"} <= set(record["data"])


def test_progress_is_the_mean_so_far() -> None:
    model, blocks = tiny_llama(), random_blocks()
    seen: list[tuple[int, int, float]] = []
    loss = mean_loss(model, blocks.token_ids, 2, lambda *row: seen.append(row))
    assert [(done, steps) for done, steps, _ in seen] == [(2, 5), (4, 5), (5, 5)]
    assert seen[0][2] == pytest.approx(mean_loss(model, blocks.token_ids[:2]), abs=1e-6)
    assert seen[-1][2] == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize(("value", "name"), [(math.nan, "nan"), (math.inf, "nan|inf")])
def test_a_loss_that_is_not_finite_stops_at_once(value: float, name: str) -> None:
    model, blocks = tiny_llama(), random_blocks()
    seen: list[int] = []
    with torch.no_grad():
        model.lm_head.weight[blocks.token_ids[0, 5]] = value
    remedy = "so there is no perplexity: .*; try --dtype float32"
    with pytest.raises(InputError, match=rf"the loss is ({name}) on blocks 0 to 1 .*{remedy}"):
        perplexity(model, blocks, 2, lambda done, steps, mean: seen.append(done))
    assert not seen


def test_a_loss_beyond_exp() -> None:
    model, blocks = tiny_llama(), random_blocks()
    with torch.no_grad():
        model.lm_head.weight.mul_(1e5)
    with pytest.raises(InputError, match=r"the loss is .*e\+.* on all 5 blocks, so there is no"):
        perplexity(model, blocks)


def test_sliding_windows_equal_the_naive_reference() -> None:
    model, blocks = tiny_llama(), random_blocks(3, 8)
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


def test_a_stride_of_the_whole_block_is_the_blocks() -> None:
    model, blocks = tiny_llama(), random_blocks(4, 10)
    plain, slid = perplexity(model, blocks, 2), perplexity(model, blocks, 2, stride=10)
    assert slid.loss_nats_per_token == plain.loss_nats_per_token
    assert (slid.tokens, slid.tokens_counted) == (plain.tokens, plain.tokens_counted)
    assert slid.standard_error == plain.standard_error


def test_the_standard_error_is_that_of_block_means() -> None:
    model, blocks = tiny_llama(), random_blocks(5, 12)
    means = [mean_loss(model, block[None]) for block in blocks.token_ids]
    result = perplexity(model, blocks)
    assert result.standard_error == pytest.approx(statistics.stdev(means) / math.sqrt(5), rel=1e-6)
    record = result.as_dict()
    low, high = record["perplexity_interval"]
    assert low < record["perplexity"] < high
    assert result.standard_error is not None
    assert math.log(high / low) == pytest.approx(2 * 1.96 * result.standard_error)
    assert perplexity(model, random_blocks(1, 12)).as_dict()["standard_error"] is None


def test_bits_per_byte_count_the_bytes_of_what_is_scored() -> None:
    # A byte is a token, so the bytes are the tokens and bits per byte is bits per token.
    model, text = tiny_model("llama"), "naïve cafés, 34 €"
    ids = torch.tensor([[*text.encode()]])
    result = perplexity(model, Blocks(ids, TextSource("x"), 1), tokenizer=tiny_tokenizer())
    assert result.bytes == result.tokens == len(text.encode()) - 1
    assert result.bits_per_byte == pytest.approx(result.loss_nats_per_token / math.log(2))


def test_bytes_of_a_tokenizer_with_longer_tokens(demo_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    text = "Once upon a time there was a little bear. " * 8
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    windows = sliding_windows(ids[: len(ids) // 8 * 8].view(-1, 8), stride=3)
    scored = tokenizer.decode(ids[1 : len(ids) // 8 * 8])
    assert isinstance(scored, str)
    assert scored_bytes(tokenizer, windows) == len(scored.encode())


def documents_of(*lengths: int) -> Documents:
    generator = torch.Generator().manual_seed(2)
    ids = [torch.randint(97, (length,), generator=generator) for length in lengths]
    return Documents(ids, TextSource("noise"), skipped=0)


def test_documents_are_taken_alone() -> None:
    model, documents = tiny_llama(), documents_of(7, 2, 11, 5)
    by_document = [naive_losses(model, ids) for ids in documents.token_ids]
    result = document_perplexity(model, documents, length=16, batch_size=3)
    every = [loss for losses in by_document for loss in losses]
    assert result.tokens == len(every) == 6 + 1 + 10 + 4
    assert result.loss_nats_per_token == pytest.approx(statistics.fmean(every), abs=1e-5)
    means = [statistics.fmean(losses) for losses in by_document]
    record = json.loads(json.dumps(result.as_dict()))
    mean = record["mean_over_documents"]
    assert mean["loss_nats_per_token"] == pytest.approx(statistics.fmean(means), abs=1e-5)
    assert mean["perplexity"] == pytest.approx(math.exp(statistics.fmean(means)), rel=1e-5)
    assert mean["standard_error"] == pytest.approx(statistics.stdev(means) / 2, rel=1e-4)
    assert record["data"]["documents"] == 4


def test_a_long_document_is_cut_into_windows() -> None:
    model, documents = tiny_llama(), documents_of(20, 3)
    long, short = documents.token_ids
    apart = naive_losses(model, long[:8]) + naive_losses(model, long[8:16])
    apart += naive_losses(model, long[12:20], first=4) + naive_losses(model, short)
    result = document_perplexity(model, documents, length=8, batch_size=2)
    assert result.tokens == len(apart) == 7 + 7 + 4 + 2
    assert result.loss_nats_per_token == pytest.approx(statistics.fmean(apart), abs=1e-5)
    slid = document_perplexity(model, documents, length=8, stride=4)
    assert slid.tokens == 19 + 2  # a window reaches back, so only a document's first is left out


def test_blocks_longer_than_the_model() -> None:
    with pytest.raises(InputError) as caught:
        perplexity(tiny_llama(), random_blocks(1, 65))
    assert str(caught.value) == (
        "blocks of 65 tokens are longer than the 64 positions that the model was made for; "
        "use --sequence-length 64 or less"
    )
    assert perplexity(tiny_llama(), random_blocks(1, 64)).tokens == 63


def test_tokens_of_another_tokenizer() -> None:
    blocks = Blocks(torch.tensor([[3, 97]]), TextSource("noise"), documents=1)
    with pytest.raises(
        InputError, match=r"gave token 97, .* has only 97 tokens; use the tokenizer"
    ):
        perplexity(tiny_llama(), blocks)


def test_training_mode_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="eval mode"):
        perplexity(tiny_llama().train(), random_blocks())


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "split", "expected"),
    [
        ("wikitext-2/wiki.test.raw", None, 134.44),
        ("c4/c4_sample.jsonl", "train[900:]", 137.32),
    ],
)
def test_reference_figures(source: str, split: str | None, expected: float) -> None:
    folder = SHARED / "models" / "ref-llama-7m"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    blocks = read_blocks(tokenizer, TextSource(str(SHARED / "data" / source), split), 512, 80)
    result = perplexity(model, blocks, batch_size=4)
    assert result.tokens == 80 * 511
    assert result.perplexity == pytest.approx(expected, abs=0.02)
