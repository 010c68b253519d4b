"""Task accuracy through lm-eval's Python API.

lm-eval is an extra: it is imported where it is used and nowhere else. Prompts, few-shot examples,
log-likelihoods and metrics are its own.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.accuracy import METRICS, headline
from grasp_deploy.evaluate.tasks.lm_eval_log import silent
from grasp_deploy.evaluate.tasks.settings import RunSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def check_installed() -> None:
    """InputError if lm-eval is not installed."""
    if find_spec("lm_eval") is None:
        raise InputError("lm-eval is not installed: run pip install 'grasp-deploy[eval]'")


def transformers_lm(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int, max_tokens: int
) -> Any:
    """lm-eval's wrapper of a loaded model; prompts longer than `max_tokens` lose their beginning.

    Log-probabilities are computed in float32 whatever the model's dtype, as vLLM does. Raises
    InputError if the tokenizer has more tokens than the model.
    """
    if tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model's vocabulary only "
            f"{model.config.vocab_size}: use the tokenizer that belongs to the model"
        )
    with silent():  # it warns that a loaded model is not a name
        from lm_eval.models.huggingface import HFLM

        return HFLM(
            pretrained=model,
            tokenizer=tokenizer,
            backend="causal",
            batch_size=batch_size,
            max_length=max_tokens,
            softmax_dtype="float32",
        )


def run_task(
    lm: Any,
    name: str,
    loaded: Mapping[str, Any],
    settings: RunSettings,
    on_requests: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Run one of `load_tasks` on an LM of lm-eval, and return its cells as in `record.TaskCell`.

    A task or a group is one cell; a tag such as `ai2_arc` has one for each of its tasks. Raises
    InputError for an answer that is longer than what the LM takes.
    """
    # `simple_evaluate` adds an inventory of the machine to each call, which takes seconds.
    from lm_eval import evaluate

    from grasp_deploy.evaluate.tasks.observed_lm import ObservedLM

    random.seed(settings.seed)
    for task in loaded["tasks"].values():
        _set_fewshot(task, settings)
    with silent() as truncated:
        results = evaluate(
            ObservedLM(lm, on_requests), loaded, limit=settings.limit, bootstrap_iters=1000
        )
    if name in loaded["groups"]:
        return [_cell(name, list(loaded["tasks"]), results, loaded, len(truncated))]
    return [_cell(task, [task], results, loaded, len(truncated)) for task in loaded["tasks"]]


def _set_fewshot(task: Any, settings: RunSettings) -> None:
    """Set the number of examples as `lm_eval.simple_evaluate` does: a task's own 0 stays."""
    own = task.get_config("num_fewshot")
    if settings.num_fewshot is not None and own != 0:
        task.set_config(key="num_fewshot", value=settings.num_fewshot)
    elif own is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=settings.seed)


def _cell(
    name: str,
    tasks: Sequence[str],
    results: Mapping[str, Any],
    loaded: Mapping[str, Any],
    truncated: int,
) -> dict[str, Any]:
    figures = results["results"][name]
    metric, metric_filter = headline(figures)
    error = figures.get(f"{metric}_stderr,{metric_filter}")
    samples = [
        (task, sample)
        for task in tasks
        for sample in results["samples"][task]
        if sample["filter"] == metric_filter
    ]
    fewshot = {loaded["tasks"][task].get_config("num_fewshot") for task in tasks}
    prompts = json.dumps([sample["arguments"] for _, sample in samples], default=str)
    return {
        "task": name,
        "metric": metric if metric_filter == "none" else f"{metric}, {metric_filter}",
        "accuracy": float(figures[f"{metric},{metric_filter}"]),
        "standard_error": float(error) if isinstance(error, float) else None,
        "metrics": {key: float(v) for key, v in figures.items() if isinstance(v, float)},
        "num_fewshot": fewshot.pop() if len(fewshot) == 1 else None,
        "truncated": truncated,
        "prompts_sha256": hashlib.sha256(prompts.encode()).hexdigest(),
        "items": [_item(task if len(tasks) > 1 else None, sample) for task, sample in samples],
    }


def _item(task: str | None, sample: Mapping[str, Any]) -> dict[str, Any]:
    answers = sample["filtered_resps"]
    scored = isinstance(answers[0], tuple | list)
    return {
        **({"task": task} if task else {}),
        "item": sample["doc_id"],
        **({"loglikelihoods": [float(a[0]) for a in answers]} if scored else {"answer": answers}),
        **{name: float(sample[name]) for name in METRICS if name in sample["metrics"]},
    }
