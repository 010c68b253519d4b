"""The options of `evaluate tasks`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grasp_deploy.config.option import (
    DEVICE_HELP,
    ENFORCE_EAGER_HELP,
    Count,
    CountOrZero,
    Length,
    Seed,
    option,
)


@dataclass(frozen=True)
class RunSettings:
    """Settings of one task's run; `num_fewshot` None leaves it to the task."""

    limit: int | None = None
    num_fewshot: int | None = None
    seed: int = 1234  # lm-eval's default, which draws the same few-shot examples


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
    dtype: str = option("auto, float32, bfloat16 or float16; auto: float32 on a CPU.", "auto")
    enforce_eager: bool = option(ENFORCE_EAGER_HELP, False)
    seed: Seed = option("Seed of the examples in the prompt.", RunSettings.seed)

    @property
    def run(self) -> RunSettings:
        return RunSettings(self.limit, self.num_fewshot, self.seed)
