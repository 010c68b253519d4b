"""Train a small model of a family from scratch, on texts of several kinds, for studies.

    python -m benchmarks.python_docs python-docs.jsonl
    python -m benchmarks.train_small_model --family qwen3 --minutes 40 --output qwen3-small \
        --text '../shared/data/c4/c4_sample.jsonl@train[:900]' --text python-docs.jsonl \
        --text ../shared/data/tinystories/train.txt \
        --evaluate 'c4=../shared/data/c4/c4_sample.jsonl@train[900:]'

Every document begins with <s> and ends with </s>. So text that the model writes from <s> on is of
all the kinds that it was trained on. Three batches in four have sequences of half the length, which
take less time. The folder appears whole: tokenizer, bfloat16 weights, and a model card with the
perplexities of those weights.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from benchmarks.common.output import check_positive, command_of, new_parser, run_command
from benchmarks.study.options import parse_texts
from benchmarks.train_demo_model import CARD, Recipe, batches, train, train_tokenizer
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.data import TextSource, read_blocks
from grasp_deploy.data.blocks import read_documents
from grasp_deploy.evaluate.perplexity import perplexity
from grasp_deploy.files.disk import write_text
from grasp_deploy.files.outputs import check_file_place, refuse_existing, staged_directory

FAMILIES = ("llama", "qwen3")
LONGEST_TEXT = 1024  # tokens
END_OF_DOCUMENT = "<|endoftext|>"  # as files of several stories have it
EVALUATED_SEQUENCES = 80


def documents_of(sources: Sequence[TextSource]) -> list[str]:
    """The documents of all sources."""
    texts = [text for source in sources for text in read_documents(source)]
    parts = [part.strip() for text in texts for part in text.split(END_OF_DOCUMENT)]
    return [part for part in parts if part]


def build_model(family: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Four million parameters in eight layers; query and KV heads wider than the hidden size."""
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=576,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=LONGEST_TEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def some_longer(stream: Iterator[Tensor]) -> Iterator[Tensor]:
    """Every fourth batch with its sequences joined in pairs."""
    for step, tokens in enumerate(stream):
        yield tokens if step % 4 else tokens.view(-1, 2 * tokens.shape[1])


def perplexities(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpora: Sequence[TextSource],
    length: int,
) -> dict[str, float]:
    """Perplexity by corpus, on its first sequences."""
    found = {}
    for corpus in corpora:
        blocks = read_blocks(tokenizer, corpus, length, EVALUATED_SEQUENCES, or_fewer=True)
        found[corpus.label] = perplexity(model, blocks, batch_size=4).perplexity
    return found


def card(command: list[str], model: PreTrainedModel, seen: int, seconds: float) -> str:
    """The start of the model card."""
    return f"""# A small {model.config.model_type} model for studies

{model.num_parameters():,} parameters, trained on {seen:,} tokens in {seconds:.0f} seconds with
{torch.get_num_threads()} processor thread(s). It is no use for anything else.

    {" ".join(command)}

"""


def run(options: argparse.Namespace, command: list[str]) -> dict[str, float]:
    """Everything from texts to a finished model folder; returns perplexities by corpus."""
    torch.manual_seed(options.seed)
    texts = documents_of(parse_texts("--text", options.text, evaluates=False))
    corpora = parse_texts("--evaluate", options.evaluate or ())
    tokenizer: PreTrainedTokenizerBase
    if options.start:
        tokenizer = load_tokenizer(options.start)
        model = load(options.start, device="cpu", dtype="float32")
    else:
        tokenizer = train_tokenizer(texts, options.vocabulary)
        model = build_model(options.family, tokenizer)
    begin, end = [tokenizer.bos_token_id], [tokenizer.eos_token_id]
    encoded = [begin + ids + end for ids in tokenizer(texts, verbose=False)["input_ids"]]
    recipe = Recipe(
        options.minutes,
        options.batch_sequences,
        options.learning_rate,
        options.epochs,
        seed=options.seed,
        sequence_tokens=options.sequence_tokens // 2,
        autocast=False,
    )
    tokens = sum(map(len, encoded))
    total = options.epochs * tokens // (recipe.batch_sequences * recipe.sequence_tokens)
    print(f"{model.num_parameters():,} parameters, {tokens:,} training tokens, {total} steps")
    with staged_directory(options.output) as staging:
        seconds, seen = train(model, some_longer(batches(encoded, [], recipe)), total, recipe)
        model.bfloat16().eval().save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        found = perplexities(model.float(), tokenizer, corpora, options.sequence_tokens)
        shown = json.dumps(found, indent=2)
        write_text(
            staging / CARD,
            card(command, model, seen, seconds)
            + f"Perplexities, {options.sequence_tokens} tokens a sequence: {shown}\n",
        )
    return found


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = new_parser(__doc__)
    texts: dict[str, Any] = {"action": "append", "metavar": "[NAME=]TEXT[@SPLIT]"}
    parser.add_argument("--family", choices=FAMILIES, default="qwen3")
    parser.add_argument("--text", required=True, help="text to learn from; repeat", **texts)
    parser.add_argument("--evaluate", help="text to measure perplexity on; repeat", **texts)
    parser.add_argument("--output", type=Path, required=True, help="folder to make")
    parser.add_argument("--start", type=Path, help="go on from a folder that this script wrote")
    parser.add_argument("--minutes", type=float, default=40, help="stop learning after this time")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the text")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--sequence-tokens", type=int, default=512, help="of the longest")
    parser.add_argument("--batch-sequences", type=int, default=4, help="of half that length")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="at its peak")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    numbers = ("minutes", "epochs", "vocabulary", "sequence_tokens", "batch_sequences")
    check_positive(options, *numbers, "learning_rate", "threads")
    refuse_existing(options.output, overwrite=False)
    check_file_place(options.output / "config.json", "--output")
    torch.set_num_threads(options.threads)
    for name, value in run(options, command_of("train_small_model", arguments)).items():
        print(f"perplexity on {name}: {value:.2f}")


if __name__ == "__main__":
    run_command(main)
