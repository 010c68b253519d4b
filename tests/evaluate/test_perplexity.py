"""Perplexity against a naive reference, its errors, and the figures of the reference model."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from grasp_deploy.data import Blocks, read_blocks
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate import perplexity as module
from grasp_deploy.evaluate.perplexity import mean_loss, perplexity

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
    return LlamaForCausalLM(config).to(dtype).eval()


def random_blocks(blocks: int = 5, sequence_length: int = 40) -> Blocks:
    generator = torch.Generator().manual_seed(1)
    token_ids = torch.randint(97, (blocks, sequence_length), generator=generator)
    return Blocks(token_ids, "noise", None, None, documents=1)


def naive_loss(model: LlamaForCausalLM, blocks: Blocks) -> float:
    losses = []
    for block in blocks.token_ids:
        for position in range(1, len(block)):
            with torch.no_grad():
                logits = model(block[None, :position]).logits[0, -1]
            losses.append(-logits.double().log_softmax(0)[block[position]].item())
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
        "tokens",
        "tokens_counted",
        "data",
        "loss_nats_per_token",
        "dtype",
        "seconds",
    }
    assert record["tokens"] == 5 * 39
    assert record["tokens_counted"].startswith("positions 2 to 40 of each of 5 blocks of 40 tokens")
    assert record["dtype"] == "float32"
    assert record["data"]["source"] == "noise"
    assert (record["data"]["sequences"], record["data"]["sequence_length"]) == (5, 40)
    assert {"split", "column", "documents"} <= set(record["data"])


def test_progress_is_the_mean_so_far() -> None:
    model, blocks = tiny_llama(), random_blocks()
    seen: list[tuple[int, float]] = []
    loss = mean_loss(model, blocks.token_ids, 2, lambda done, mean: seen.append((done, mean)))
    assert [done for done, _ in seen] == [2, 4, 5]
    assert seen[0][1] == pytest.approx(mean_loss(model, blocks.token_ids[:2]), abs=1e-6)
    assert seen[-1][1] == loss


@pytest.mark.parametrize(("value", "name"), [(math.nan, "nan"), (math.inf, "nan|inf")])
def test_a_loss_that_is_not_finite_stops_at_once(value: float, name: str) -> None:
    model, blocks = tiny_llama(), random_blocks()
    seen: list[int] = []
    with torch.no_grad():
        model.lm_head.weight[blocks.token_ids[0, 5]] = value
    remedy = "so there is no perplexity: .*; try --dtype float32"
    with pytest.raises(InputError, match=rf"the loss is ({name}) on blocks 0 to 1 .*{remedy}"):
        perplexity(model, blocks, 2, lambda done, mean: seen.append(done))
    assert not seen


def test_a_loss_beyond_exp() -> None:
    model, blocks = tiny_llama(), random_blocks()
    with torch.no_grad():
        model.lm_head.weight.mul_(1e5)
    with pytest.raises(InputError, match=r"the loss is .*e\+.* on all 5 blocks, so there is no"):
        perplexity(model, blocks)


def test_blocks_longer_than_the_model() -> None:
    with pytest.raises(InputError) as caught:
        perplexity(tiny_llama(), random_blocks(1, 65))
    assert str(caught.value) == (
        "blocks of 65 tokens are longer than the 64 positions that the model was made for; "
        "use --sequence-length 64 or less"
    )
    assert perplexity(tiny_llama(), random_blocks(1, 64)).tokens == 63


def test_tokens_of_another_tokenizer() -> None:
    blocks = Blocks(torch.tensor([[3, 97]]), "noise", None, None, documents=1)
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
    blocks = read_blocks(tokenizer, str(SHARED / "data" / source), split, None, 512, 80)
    result = perplexity(model, blocks, batch_size=4)
    assert result.tokens == 80 * 511
    assert result.perplexity == pytest.approx(expected, abs=0.02)
