"""Train the small Llama that ships with the package, on text that comes with Python.

    python -m benchmarks.train_demo_model --minutes 30

Writes `grasp_deploy/demo/model/` in one rename: tokenizer, bf16 weights and a model card with
the perplexity measured on those very weights. Two processor cores are enough.
"""

import math
import platform
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from benchmarks.common.models import MODEL
from benchmarks.common.output import check_positive, new_parser, run_command
from grasp_deploy.data import Blocks, TextSource
from grasp_deploy.demo import text
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.perplexity import perplexity
from grasp_deploy.files.disk import readable_disk_errors
from grasp_deploy.files.outputs import check_file_place

CARD, TITLE = "README.md", "# The demo model of grasp-deploy"
VOCABULARY = 2048
SEQUENCE_TOKENS = 256
SEPARATOR = "\n\n"  # as everywhere in this package: documents are joined by a blank line


@dataclass(frozen=True)
class Recipe:
    """Duration, sizes and rates of learning."""

    minutes: float
    batch_sequences: int
    peak_learning_rate: float
    epochs: int
    weight_decay: float = 0.1
    warmup_share: float = 0.05
    seed: int = 0


@dataclass(frozen=True)
class Result:
    """The figures of the model card."""

    training_tokens: int  # distinct tokens in the training documents
    seen_tokens: int  # training tokens times passes
    training_seconds: float
    heldout_tokens: int  # predicted positions that the perplexity counts
    perplexity: float


def train_tokenizer(documents: list[str]) -> PreTrainedTokenizerFast:
    """Train byte-level BPE, which can encode every string."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Three million parameters: 8 query heads on 4 KV heads, so that groups can be pruned."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def batches(encoded: list[list[int]], separator: list[int], recipe: Recipe) -> Iterator[Tensor]:
    """Yield (batch, tokens) ids; every pass joins the documents in a new random order."""
    order = random.Random(recipe.seed)
    block = recipe.batch_sequences * SEQUENCE_TOKENS
    stream: list[int] = []
    for _ in range(recipe.epochs):
        for index in order.sample(range(len(encoded)), len(encoded)):
            stream += encoded[index] + separator
            while len(stream) >= block:
                yield torch.tensor(stream[:block]).view(-1, SEQUENCE_TOKENS)
                stream = stream[block:]


def learning_rate(progress: float, recipe: Recipe) -> float:
    """Linear warm-up, then half a cosine down to a twentieth; `progress` runs from 0 to 1."""
    if progress < recipe.warmup_share:
        return recipe.peak_learning_rate * (progress + 0.001) / recipe.warmup_share
    fallen = (progress - recipe.warmup_share) / (1 - recipe.warmup_share)
    return recipe.peak_learning_rate * (0.05 + 0.95 * (1 + math.cos(math.pi * min(1, fallen))) / 2)


def make_optimizer(model: PreTrainedModel, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW that decays matrices only: norms have no reason to shrink."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak_learning_rate, betas=(0.9, 0.95))


def train(
    model: PreTrainedModel, stream: Iterator[Tensor], total: int, recipe: Recipe
) -> tuple[float, int]:
    """Learn until the passes or the minutes are over; returns the seconds and the tokens seen.

    The schedule follows the larger of both shares, so that it always ends at the bottom.
    """
    optimizer = make_optimizer(model, recipe)
    model.train()
    start, running, seen = time.monotonic(), math.log(model.config.vocab_size), 0
    for step, tokens in enumerate(stream):
        seconds = time.monotonic() - start
        progress = max(step / total, seconds / (60 * recipe.minutes))
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(progress, recipe)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running += 0.05 * (loss.item() - running)
        seen += tokens.numel()
        if step % 50 == 0:
            left = seconds / progress - seconds if progress else math.nan
            print(f"step {step} of {total}  loss {running:.3f}  {left:.0f} s left", flush=True)
    return time.monotonic() - start, seen


def heldout_blocks(tokenizer: PreTrainedTokenizerBase, heldout: list[str]) -> Blocks:
    """Held-out documents, joined by blank lines, in sequences without overlap."""
    ids = torch.tensor(tokenizer(SEPARATOR.join(heldout), verbose=False)["input_ids"])
    whole = len(ids) // SEQUENCE_TOKENS * SEQUENCE_TOKENS
    return Blocks(ids[:whole].view(-1, SEQUENCE_TOKENS), TextSource("held-out"))


def write_card(folder: Path, model: LlamaForCausalLM, result: Result) -> None:
    """The model card; every figure on it comes from this run."""
    version = platform.python_version()
    (folder / CARD).write_text(
        f"""---
license: apache-2.0
language: en
library_name: transformers
---
{TITLE}

A Llama-shaped language model of {model.num_parameters():,} parameters (6 layers, 8 query heads
on 4 KV heads of size 32, 512 FFN channels, byte-level BPE vocabulary of {VOCABULARY}, bfloat16).
It is there so that the demo and the tests need no download. It is no use for anything else.

- **Trained on** the text that comes with CPython {version}: `pydoc_data.topics` and the
  docstrings of the standard library, {result.training_tokens:,} tokens, read until
  {result.seen_tokens:,} tokens were seen ({result.training_seconds:.0f} seconds on
  {torch.get_num_threads()} processor thread(s)).
- **Held-out perplexity: {result.perplexity:.2f}** on documents that it was not trained on
  (`grasp_deploy.demo.text.split`), joined by blank lines and cut into blocks of
  {SEQUENCE_TOKENS} tokens without overlap; {result.heldout_tokens:,} predicted tokens,
  bfloat16 weights, float32 loss. Another Python version has slightly different text.
- **Licence:** the files of this folder are under Apache-2.0; the text it learnt from is part of
  CPython and under the PSF licence.
- **Regenerate:** `python -m benchmarks.train_demo_model`
"""
    )


def check_place(folder: Path) -> None:
    """InputError if no model can be written there; only an earlier demo model is replaced."""
    card = folder / CARD
    if folder.exists() and not (card.is_file() and TITLE in card.read_text("utf-8").splitlines()):
        raise InputError(
            f"--output {folder} exists and is not a demo model of this script: name another folder"
        )
    check_file_place(card, "--output")


def write_folder(
    folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, result: Result
) -> None:
    """Write a temporary sibling, then rename it: a half-written model is never seen."""
    check_place(folder)  # again: the training took minutes
    with (
        readable_disk_errors(folder),
        tempfile.TemporaryDirectory(prefix=f".{folder.name}.new-", dir=folder.parent) as temporary,
    ):
        made = Path(temporary) / folder.name
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        write_card(made, model, result)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def run(recipe: Recipe, folder: Path) -> Result:
    """Everything from Python's own text to a finished model folder."""
    torch.manual_seed(recipe.seed)
    training, heldout = text.split(text.documents())
    tokenizer = train_tokenizer(training)
    model = build_model(tokenizer)
    encoded = tokenizer(training, verbose=False)["input_ids"]
    separator = tokenizer(SEPARATOR)["input_ids"]
    tokens = sum(map(len, encoded))
    everything = recipe.epochs * (tokens + len(encoded) * len(separator))
    total = everything // (recipe.batch_sequences * SEQUENCE_TOKENS)
    print(f"{model.num_parameters():,} parameters, {tokens:,} training tokens, {total} steps")

    seconds, seen = train(model, batches(encoded, separator, recipe), total, recipe)
    model.bfloat16()
    measured = perplexity(model.eval(), heldout_blocks(tokenizer, heldout), batch_size=8)
    result = Result(tokens, seen, seconds, measured.tokens, measured.perplexity)
    write_folder(folder, model, tokenizer, result)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="stop learning after this time")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the text")
    parser.add_argument("--batch-sequences", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="at its peak")
    parser.add_argument("--threads", type=int, default=2, help="1 is faster beside other work")
    parser.add_argument("--output", type=Path, help=f"instead of {MODEL.name}/ in the package")
    parser.add_argument("--smoke", action="store_true", help="a few seconds; requires --output")
    options = parser.parse_args(arguments)
    if options.smoke and options.output is None:
        parser.error("--smoke makes a useless model: name a folder for it with --output")
    check_positive(options, "minutes", "epochs", "batch_sequences", "learning_rate", "threads")
    folder = (options.output or MODEL).resolve()
    check_place(folder)
    torch.set_num_threads(options.threads)
    minutes = 0.1 if options.smoke else options.minutes
    recipe = Recipe(minutes, options.batch_sequences, options.learning_rate, options.epochs)
    result = run(recipe, folder)
    print(f"held-out perplexity {result.perplexity:.2f} after {result.training_seconds:.0f} s")


if __name__ == "__main__":
    run_command(main)
