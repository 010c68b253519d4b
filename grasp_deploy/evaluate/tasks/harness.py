"""Task accuracy through lm-eval, used as the library that it is.

lm-eval is an extra: it is imported where it is used and nowhere else. Prompts, few-shot examples,
log-likelihoods and metrics are its own; a local file becomes a task of its own kind.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.tasks.accuracy import METRICS, headline
from grasp_deploy.evaluate.tasks.lm_eval_log import count_truncated, silent
from grasp_deploy.evaluate.tasks.settings import RunSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OnRequests = Callable[[int, int], None]  # requests done, and requests in all
PORTION_REQUESTS = 256
REQUEST_KINDS = ("loglikelihood", "loglikelihood_rolling", "generate_until")


def check_installed() -> None:
    """InputError if lm-eval is not there."""
    if find_spec("lm_eval") is None:
        raise InputError("lm-eval is not installed: run pip install 'grasp-deploy[eval]'")


def transformers_lm(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int, max_tokens: int
) -> Any:
    """lm-eval's view of a loaded model; prompts longer than `max_tokens` lose their beginning.

    Log-probabilities are taken in float32 whatever the model's dtype, as vLLM does. Raises
    InputError if the tokenizer has more tokens than the model.
    """
    if tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model's vocabulary only "
            f"{model.config.vocab_size}: use the tokenizer that belongs to the model"
        )
    with silent():  # it warns that a loaded model is no name of one
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
    on_progress: OnRequests | None,
) -> list[dict[str, Any]]:
    """Run one of `task_loading.load_tasks` on an LM of lm-eval; gives its cells.

    A cell has `task`, `metric`, `accuracy` (0 to 1), `standard_error` (of the mean over items; None
    for one item), all `metrics`, `num_fewshot`, `truncated` prompts, `prompts_sha256` and `items`.
    A task or a group is one cell; a tag such as `ai2_arc` has one for each of its tasks.

    Raises InputError for an answer that is longer than what the LM takes.
    """
    from lm_eval.evaluator import evaluate

    random.seed(settings.seed)
    for task in loaded["tasks"].values():
        _set_fewshot(task, settings)
    limit = None if settings.limit is None else min(settings.limit, sys.maxsize)
    with _watched(lm, on_progress), _answers_checked(lm, name), count_truncated() as truncated:
        results = evaluate(lm, loaded, limit=limit, bootstrap_iters=1000)
    groups = loaded.get("groups") or {}
    if name in groups:
        return [_cell(name, list(loaded["tasks"]), results, loaded, truncated)]
    return [_cell(task, [task], results, loaded, truncated) for task in loaded["tasks"]]


def _set_fewshot(task: Any, settings: RunSettings) -> None:
    """What lm-eval's own `simple_evaluate` does: a task that says 0 is never given examples."""
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
    truncated: Sequence[str],
) -> dict[str, Any]:
    metric, metric_filter = headline(results["results"][name])
    figures = results["results"][name]
    error = figures.get(f"{metric}_stderr,{metric_filter}")
    samples = [
        (task, sample)
        for task in tasks
        for sample in results["samples"][task]
        if sample["filter"] == metric_filter
    ]
    fewshot = {loaded["tasks"][task].get_config("num_fewshot") for task in tasks}
    return {
        "task": name,
        "metric": metric if metric_filter == "none" else f"{metric}, {metric_filter}",
        "accuracy": float(figures[f"{metric},{metric_filter}"]),
        "standard_error": float(error) if isinstance(error, float) else None,
        "metrics": {key: float(v) for key, v in figures.items() if isinstance(v, float)},
        "num_fewshot": fewshot.pop() if len(fewshot) == 1 else None,
        "truncated": len(truncated),
        "prompts_sha256": _hash([sample["arguments"] for _, sample in samples]),
        "items": [_item(task if len(tasks) > 1 else None, sample) for task, sample in samples],
    }


def _item(task: str | None, sample: Mapping[str, Any]) -> dict[str, Any]:
    """What a record keeps of an item: the answer's scores, or the answer, and what it was worth."""
    answers = sample["filtered_resps"]
    scored = isinstance(answers[0], tuple | list)
    return {
        **({"task": task} if task else {}),
        "item": sample["doc_id"],
        **({"loglikelihoods": [float(a[0]) for a in answers]} if scored else {"answer": answers}),
        **{name: float(sample[name]) for name in METRICS if name in sample["metrics"]},
    }


def _hash(arguments: object) -> str:
    return hashlib.sha256(json.dumps(arguments, default=str).encode()).hexdigest()


@contextmanager
def _watched(lm: Any, on_progress: OnRequests | None) -> Iterator[None]:
    """While it lasts, the LM answers in portions, `on_progress` hears of each, and no bar is drawn."""
    if on_progress is None:
        yield
        return
    for kind in REQUEST_KINDS:
        setattr(lm, kind, _in_portions(getattr(lm, kind), on_progress))
    try:
        yield
    finally:
        for kind in REQUEST_KINDS:
            delattr(lm, kind)  # the class's own is back


@contextmanager
def _answers_checked(lm: Any, name: str) -> Iterator[None]:
    """While it lasts, an answer longer than the LM takes is refused: only prompts lose a part."""
    score = lm._loglikelihood_tokens

    def checked(requests: list[Any], *arguments: Any, **options: Any) -> list[Any]:
        longest = max((len(answer) for _, _, answer in requests), default=0)
        if longest > lm.max_length:
            raise InputError(
                f"task {name} has an answer of {longest} tokens, and prompt and answer are to take "
                f"{lm.max_length} at most: raise --max-tokens as far as the models go, or leave "
                "that item out"
            )
        answers: list[Any] = score(requests, *arguments, **options)
        return answers

    lm._loglikelihood_tokens = checked
    try:
        yield
    finally:
        del lm._loglikelihood_tokens  # the class's own is back


def _in_portions(
    answer: Callable[..., list[Any]], on_progress: OnRequests
) -> Callable[..., list[Any]]:
    def answer_in_portions(requests: list[Any]) -> list[Any]:
        answers: list[Any] = []
        while len(answers) < len(requests):
            portion = requests[len(answers) : len(answers) + PORTION_REQUESTS]
            answers += answer(portion, disable_tqdm=True)
            on_progress(len(answers), len(requests))
        return answers

    return answer_in_portions
