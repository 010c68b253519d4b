"""The options of `evaluate perplexity`, `evaluate card`, `evaluate drift` and `evaluate tasks`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grasp_deploy.config.option import (
    DEVICE_HELP,
    DTYPE_HELP,
    ENFORCE_EAGER_HELP,
    SEQUENCE_LENGTH_HELP,
    Count,
    CountOrZero,
    Length,
    Seed,
    option,
)

ITEMS_HELP = (
    "Local items as JSON lines: {query, choices, gold}, {context_options, continuation, gold}, "
    "or HellaSwag's own. May be repeated."
)
SEQUENCES = 80  # unless the user says otherwise; all of a shorter text


@dataclass(frozen=True)
class PerplexitySettings:
    """The text, and how it is cut and scored."""

    data: str = option(
        "wikitext2, ptb, c4, a local file, or hf:NAME[:CONFIG].", metavar="TEXT[@SPLIT]"
    )
    split: str | None = option("Rows to use, such as 'train[900:]'.", None)
    column: str | None = option("Column that holds the text, or chats as lists of messages.", None)
    sequence_length: Length | None = option(SEQUENCE_LENGTH_HELP, None)
    sequences: Count | None = option(
        f"Sequences, or documents with --per-document. Default: {SEQUENCES}, or all of less text.",
        None,
    )
    stride: Count | None = option(
        "Slide a window of --sequence-length by this many tokens and score only those. Default: "
        "no overlap.",
        None,
    )
    per_document: bool = option("Score each document by itself instead of running text.", False)
    batch_size: Count = option("Sequences in a batch.", 1)
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(DTYPE_HELP, "auto")


@dataclass(frozen=True)
class CardSettings:
    """The text and tasks that are measured, the same for both models."""

    data: tuple[str, ...] = option(
        "Text outside the calibration set: wikitext2, ptb, c4, a local file, or hf:NAME[:CONFIG]. "
        "May be repeated. Default: wikitext2 and c4, except the calibration text.",
        (),
        metavar="[NAME=]TEXT[@SPLIT]",
    )
    records: tuple[Path, ...] = option(
        "Accuracies: a record of `evaluate tasks --output` for the dense model and this "
        "checkpoint. May be repeated.",
        (),
        flag="--record",
        metavar="FILE",
    )
    model: str | None = option(
        "Hub id or folder of the dense model. Default: the base model in the plan.", None
    )
    column: str | None = option("Column that holds the text.", None)
    sequence_length: Length | None = option(SEQUENCE_LENGTH_HELP, None)
    sequences: Count | None = option(
        f"Sequences of each corpus. Default: {SEQUENCES}, or all of less text.", None
    )
    batch_size: Count = option("Sequences in a batch.", 1)
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(DTYPE_HELP, "auto")


@dataclass(frozen=True)
class DriftSettings:
    """The texts, items and prompts that both models get."""

    data: tuple[str, ...] = option(
        "Text of one kind: wikitext2, ptb, c4, a local file, or hf:NAME[:CONFIG]. May be repeated: "
        "what a pruned model loses differs by the kind.",
        metavar="[NAME=]TEXT[@SPLIT]",
    )
    task_files: tuple[Path, ...] = option(ITEMS_HELP, (), flag="--task-file", metavar="FILE")
    prompts: str | None = option(
        "Documents to answer greedily, through the chat template where there is one.",
        None,
        metavar="TEXT[@SPLIT]",
    )
    max_new_tokens: Count = option("Most tokens of an answer to one of --prompts.", 256)
    column: str | None = option("Column that holds the text.", None)
    sequence_length: Length | None = option(SEQUENCE_LENGTH_HELP, None)
    sequences: Count | None = option(
        f"Sequences of each text. Default: {SEQUENCES}, or all of less text.", None
    )
    batch_size: Count = option("Sequences in a batch.", 1)
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(DTYPE_HELP, "auto")


@dataclass(frozen=True)
class TaskSettings:
    """The tasks and how they run; the same for all models."""

    tasks: tuple[str, ...] = ()
    task_files: tuple[Path, ...] = option(
        ITEMS_HELP,
        (),
        flag="--task-file",
        metavar="FILE",
    )
    engine: str = option("transformers or vllm.", "transformers")
    limit: Count | None = option("Run only the first items of each task.", None)
    num_fewshot: CountOrZero | None = option(
        "Examples in the prompt. Default: the task's own number.", None
    )
    batch_size: Count | None = option(
        "Requests at a time. Default: 8 with transformers, vLLM's own with vllm.", None
    )
    max_tokens: Length | None = option(
        "Most tokens of a prompt; a longer one loses its beginning. Default: 4096, or the models' "
        "limit if lower.",
        None,
    )
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(DTYPE_HELP, "auto")
    enforce_eager: bool = option(ENFORCE_EAGER_HELP, False)
    # lm-eval's default, which draws the same examples as it does
    seed: Seed = option("Seed of the examples in the prompt.", 1234)
