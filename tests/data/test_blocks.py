"""Blocks of tokens: joined by a blank line, no special tokens, no overlap, the rest dropped."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from grasp_deploy.data import (
    Blocks,
    TextSource,
    read_blocks,
    read_documents,
    token_blocks,
)
from grasp_deploy.data import blocks as blocks_module
from grasp_deploy.errors import InputError

SHARED = Path(__file__).parents[2].parent / "shared"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the reference model and texts in ../shared are absent"
)
ENGLISH = ["the cat sat on the mat, the other cat did not", "Then  they  sat.  It's the end!"] * 20


def byte_level() -> PreTrainedTokenizerFast:
    """Like Llama 3, Qwen: a pattern cuts the text, bytes are merged within the cuts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    blank_lines = ["the \n\n", "\n\n\n\n", "cat\n\n  sat"] * 20  # tokens that span blanks and lines
    tokenizer.train_from_iterator(ENGLISH + blank_lines, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=16, bos_token="<s>")


def sentence_piece() -> PreTrainedTokenizerFast:
    """Like Llama 2, Mistral: no cuts at all; blanks are symbols, unknown characters bytes."""
    blanks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = blanks
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<s>"], show_progress=False)
    tokenizer.train_from_iterator([blanks.normalize_str(text) for text in ENGLISH], trainer)
    vocabulary = tokenizer.get_vocab()
    state = tokenizer.model.__getstate__()
    merges = [tuple(pair) for pair in json.loads(state)["merges"]]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    tokenizer.model = models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


TOKENIZERS = {"byte-level": byte_level(), "sentence-piece": sentence_piece()}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return TOKENIZERS[request.param]


def naive_ids(tokenizer: Any, documents: list[str]) -> list[int]:
    return tokenizer("\n\n".join(documents), add_special_tokens=False, verbose=False)["input_ids"]


def test_blocks_are_consecutive_and_the_rest_is_dropped(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = naive_ids(tokenizer, ENGLISH)
    assert len(ids) % 7, "the text should leave a rest"
    blocks = token_blocks(tokenizer, ENGLISH, 7)
    assert blocks.dtype == torch.int64
    assert blocks.shape == (len(ids) // 7, 7)
    assert blocks.flatten().tolist() == ids[: len(ids) // 7 * 7]


def test_no_special_tokens_and_no_warning_about_length() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    assert tokenizer("the cat")["input_ids"][0] == tokenizer.bos_token_id
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign,assignment]
    logging.getLogger("transformers").addHandler(handler)
    try:
        blocks = token_blocks(tokenizer, ENGLISH, 32)
        assert not records, "longer than model_max_length, yet nothing is wrong"
        tokenizer(" ".join(ENGLISH))
        assert records, "this test does not see the warning that it guards against"
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    assert tokenizer.bos_token_id not in blocks


DOCUMENT = st.one_of(
    st.sampled_from(
        ["", " ", "\n", "  \n", "the", " cat\n", "\n\nthe", "sat  ", "é", "e", "\u0301"]
    ),
    st.sampled_from(ENGLISH),
    st.text(max_size=12),
)


@pytest.mark.parametrize("guess", [0, 6], ids=["far too low", "as it is"])
@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(sorted(TOKENIZERS)),
    documents=st.lists(DOCUMENT, min_size=1, max_size=40),
    sequence_length=st.integers(2, 6),
    sequences=st.integers(1, 5),
)
# Blanks at a document's end, and documents of nothing else, belong to tokens that reach further.
@example(name="byte-level", documents=["sat  ", "", "cat"], sequence_length=3, sequences=1)
@example(name="byte-level", documents=[" ", "\n", "", "the"], sequence_length=3, sequences=1)
def test_first_blocks_equal_those_of_the_whole_text(
    guess: int, name: str, documents: list[str], sequence_length: int, sequences: int
) -> None:
    ids = naive_ids(TOKENIZERS[name], documents)
    needed = sequence_length * sequences
    if len(ids) < needed:
        with pytest.raises(InputError, match="too short"):
            token_blocks(TOKENIZERS[name], documents, sequence_length, sequences)
        return
    with pytest.MonkeyPatch.context() as patch:
        # The guess alone leaves so much room that it would hide a margin that is too small.
        patch.setattr(blocks_module, "CHARACTERS_PER_TOKEN", guess)
        blocks = token_blocks(TOKENIZERS[name], documents, sequence_length, sequences)
        assert blocks.flatten().tolist() == ids[:needed]


def test_only_as_much_text_is_tokenised_as_is_needed() -> None:
    class Counting:
        characters = 0

        def __call__(self, text: str, **options: bool) -> dict[str, list[int]]:
            self.characters += len(text)
            return TOKENIZERS["byte-level"](text, **options)

    counting = Counting()
    token_blocks(counting, ENGLISH * 1000, 16, 8)  # type: ignore[arg-type]
    assert counting.characters < 16 * 8 * 20
    counting.characters = 0
    long_documents = ["the cat " * 200] * 200  # each far longer than what is needed
    token_blocks(counting, long_documents, 16, 8)  # type: ignore[arg-type]
    assert counting.characters < 40 * 1602


def test_too_short_names_the_most_sequences() -> None:
    tokens = len(naive_ids(TOKENIZERS["byte-level"], ENGLISH))
    most = tokens // 8
    with pytest.raises(InputError) as caught:
        token_blocks(TOKENIZERS["byte-level"], ENGLISH, 8, most + 1)
    assert str(caught.value) == (
        f"the text is too short: its {tokens} tokens give {most} blocks of 8 tokens, and "
        f"{most + 1} are needed; use --sequences {most} at most, more text or a shorter "
        "--sequence-length"
    )
    assert len(token_blocks(TOKENIZERS["byte-level"], ENGLISH, 8, most)) == most


@pytest.mark.parametrize("sequences", [None, 2])
def test_not_one_block(sequences: int | None) -> None:
    with pytest.raises(InputError, match=r"give 0 blocks of 512 .*; use more text or a shorter"):
        token_blocks(TOKENIZERS["byte-level"], ["the cat"], 512, sequences)


@pytest.mark.parametrize(("sequence_length", "sequences"), [(1, 4), (8, 0)])
def test_nothing_to_predict(sequence_length: int, sequences: int) -> None:
    with pytest.raises(InputError, match="use --sequences of 1 or more and --sequence-length of 2"):
        token_blocks(TOKENIZERS["byte-level"], ENGLISH, sequence_length, sequences)


def test_provenance_tells_texts_apart() -> None:
    ids = torch.arange(12).view(3, 4)
    source = TextSource("a.jsonl", "train[:5]", "body")
    record, other = Blocks(ids, source, 5).as_dict(), Blocks(ids + 1, source, 5).as_dict()
    assert record.pop("token_ids_sha256") != other.pop("token_ids_sha256")
    assert record == other
    assert record == {
        "source": "a.jsonl",
        "split": "train[:5]",
        "column": "body",
        "documents": 5,
        "sequence_length": 4,
        "sequences": 3,
    }


@needs_shared
def test_reference_protocol() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHARED / "models" / "ref-llama-7m")
    c4 = str(SHARED / "data" / "c4" / "c4_sample.jsonl")
    ids = torch.tensor(naive_ids(tokenizer, read_documents(TextSource(c4, "train[:900]"))))
    blocks = read_blocks(tokenizer, TextSource(c4, "train[:900]"), 512, 512)
    assert blocks.documents == 900
    assert torch.equal(blocks.token_ids.flatten(), ids[: 512 * 512])
    wikitext2 = str(SHARED / "data" / "wikitext-2" / "wiki.test.raw")
    for source, split in ((wikitext2, None), (c4, "train[900:]")):
        evaluation = read_blocks(tokenizer, TextSource(source, split), 512, 80)
        assert evaluation.token_ids.shape == (80, 512)
    assert evaluation.documents == 100
