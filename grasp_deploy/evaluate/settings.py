"""The options of `evaluate compare`, `evaluate card` and `evaluate tasks`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grasp_deploy.config.option import (
    DEVICE_HELP,
    DTYPE_HELP,
    ENFORCE_EAGER_HELP,
    SEQUENCE_LENGTH_HELP,
    Count,
    CountOrZero,
    Dtype,
    Length,
    Seed,
    option,
)

SEQUENCES = 80  # unless the user says otherwise; all of a shorter text


@dataclass(frozen=True)
class CompareSettings:
    """The texts that all models get."""

    data: tuple[str, ...] = option(
        "Text of one kind: wikitext2, ptb, c4, a local file, or hf:NAME[:CONFIG]. May be repeated. "
        "Default: wikitext2 and c4; for a card without text that it was calibrated on.",
        (),
        metavar="[NAME=]TEXT[@SPLIT]",
    )
    column: str | None = option("Column that holds the text, or chats as lists of messages.", None)
    sequence_length: Length | None = option(SEQUENCE_LENGTH_HELP, None)
    sequences: Count | None = option(
        f"Sequences of each text. Default: {SEQUENCES}, or all of less text.", None
    )
    batch_size: Count = option("Sequences in a batch.", 1)
    device: str = option(DEVICE_HELP, "auto")
    dtype: Dtype = option(DTYPE_HELP, "auto")


@dataclass(frozen=True)
class CardSettings(CompareSettings):
    """The texts and tasks of a checkpoint and its dense model."""

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


@dataclass(frozen=True)
class TaskSettings:
    """The tasks and how they run; the same for all models."""

    tasks: tuple[str, ...] = ()
    task_files: tuple[Path, ...] = option(
        "Local items as JSON lines: {query, choices, gold}, {context_options, continuation, gold}, "
        "or HellaSwag's own. May be repeated.",
        (),
        flag="--task-file",
        metavar="FILE",
    )
    engine: Literal["transformers", "vllm"] = option("transformers or vllm.", "transformers")
    limit: Count | None = option("Run only the first items of each task.", None)
    num_fewshot: CountOrZero | None = option(
        "Examples in the prompt. Default: the task's own number.", None
    )
    batch_size: Count | None = option(
        "Requests at a time. Default: 8 with transformers, vLLM's own with vllm.", None
    )
    max_tokens: Length | None = option(
        "Most tokens of a prompt and its answer; a longer prompt loses its beginning. Default: "
        "4096, or the models' limit if lower.",
        None,
    )
    device: str = option(DEVICE_HELP, "auto")
    dtype: Dtype = option(DTYPE_HELP, "auto")
    enforce_eager: bool = option(ENFORCE_EAGER_HELP, False)
    # lm-eval's default, which draws the same examples as it does
    seed: Seed = option("Seed of the examples in the prompt.", 1234)
