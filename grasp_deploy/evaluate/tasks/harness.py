"""Task accuracy through lm-eval's Python API.

lm-eval is an extra: it is imported where it is used and nowhere else. Prompts, few-shot examples,
log-likelihoods and metrics are its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grasp_deploy.errors import InputError, first_line
from grasp_deploy.evaluate.settings import TaskSettings
from grasp_deploy.evaluate.tasks.accuracy import METRICS, headline
from grasp_deploy.evaluate.tasks.local_items import local_task
from grasp_deploy.files.progress import OnCount

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Loaded = Mapping[str, Any]  # lm-eval's: "tasks" and "groups" by name
LOGGER = logging.getLogger("lm_eval")
PORTION_REQUESTS = 256


def check_installed() -> None:
    """Raise InputError if lm-eval is not installed."""
    if find_spec("lm_eval") is None:
        raise InputError("lm-eval is not installed: run pip install 'grasp-deploy[eval]'")


def load_tasks(names: Sequence[str], files: Sequence[Path]) -> dict[str, Loaded]:
    """Load tasks for `run_task`: those of lm-eval's names, then those of the files.

    Raises InputError for a task that is unknown, out of reach, without an accuracy or run twice,
    and for a file without items.
    """
    specs: dict[str, Any] = {name: name for name in names}
    specs |= {path.stem: local_task(path) for path in files}
    if names:
        _check_known(names)
    tasks = {name: _load(name, spec, _manager(bool(names))) for name, spec in specs.items()}
    cells = [cell for name, loaded in tasks.items() for cell in _tasks_of_cells(name, loaded)]
    if twice := [cell for cell in cells if cells.count(cell) > 1]:
        raise InputError(f"task {twice[0]} is named twice, once by a tag: leave one of them out")
    return tasks


def _tasks_of_cells(name: str, loaded: Loaded) -> dict[str, list[str]]:
    """The tasks of each cell: a group is one cell, a tag has one for each of its tasks."""
    tasks = list(loaded["tasks"])
    return {name: tasks} if name in loaded["groups"] else {task: [task] for task in tasks}


def check_names(names: Sequence[str], files: Sequence[Path]) -> None:
    """Raise InputError if no task is named, or one twice; a file's task has the file's name."""
    asked = [*names, *(path.stem for path in files)]
    if not asked:
        raise InputError("no task is named: give --tasks, --preset or --task-file")
    twice = [name for name in asked if asked.count(name) > 1]
    if twice:
        raise InputError(f"task {twice[0]} is named twice: name each once, or rename a file")


def tried_tasks(
    settings: TaskSettings, tokenizers: Sequence[PreTrainedTokenizerBase]
) -> dict[str, Loaded]:
    """Load tasks, and run them without a model; raises as `run_task` does with any tokenizer."""
    from lm_eval.models.dummy import DummyLM

    lm, tasks = DummyLM(), load_tasks(settings.tasks, settings.task_files)
    lm.max_length = settings.max_tokens
    lm.tok_encode = lambda text, **how: max((t.encode(text, **how) for t in tokenizers), key=len)
    lm.generate_until = lambda requests, **_: ["0"] * len(requests)  # its own takes no blank prompt
    for name, loaded in tasks.items():
        run_task(lm, name, loaded, settings)
    return tasks


@cache
def _manager(include_defaults: bool) -> Any:
    """lm-eval's index of its own tasks, if asked for: thousands of files are parsed for it."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=include_defaults)


def _check_known(names: Sequence[str]) -> None:
    known = _manager(True).all_tasks
    for name in names:
        if name not in known:
            close = ", ".join(get_close_matches(name, known, n=3)) or "one of `lm-eval ls tasks`"
            raise InputError(f"lm-eval has no task {name!r}: did you mean {close}?")


def _load(name: str, spec: Any, manager: Any) -> Loaded:
    try:
        with silent():  # it warns of custom_dataset
            loaded: Loaded = manager.load([spec])
    except Exception as error:  # of datasets, the hub or a task's own code
        raise InputError(
            f"task {name} cannot be loaded ({type(error).__name__}: {first_line(error)}): its "
            "items come from the hub; check the network, or give a local --task-file"
        ) from error
    metrics = {f"task {n}": [*task.aggregation()] for n, task in loaded["tasks"].items()}
    if group := loaded["groups"].get(name):
        metrics[f"group {name}"] = [one.metric for one in group.aggregate_metric_list or ()]
    for what, stated in metrics.items():
        if not set(stated) & set(METRICS):
            raise InputError(
                f"{what} has no accuracy (its metrics: {', '.join(stated) or 'none'}): name a "
                f"task with one of {', '.join(METRICS)}"
            )
    return loaded


def transformers_lm(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int, max_tokens: int
) -> Any:
    """lm-eval's wrapper of a loaded model; prompts longer than `max_tokens` lose their beginning.

    Log-probabilities are computed in float32 whatever the model's dtype, as vLLM does.
    """
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
    lm: Any, name: str, loaded: Loaded, settings: TaskSettings, on_requests: OnCount | None = None
) -> list[dict[str, Any]]:
    """Run one of `load_tasks` on an LM of lm-eval, and return its cells as in `accuracy.TaskCell`.

    A task or a group is one cell; a tag such as `ai2_arc` has one for each of its tasks. Raises
    InputError for an answer that is longer than what the LM takes, and for what lm-eval refuses.
    """
    # `simple_evaluate` adds an inventory of the machine to each call, which takes seconds.
    from lm_eval import evaluate

    random.seed(settings.seed)
    for task in loaded["tasks"].values():
        _set_fewshot(task, settings)
    observed, cells = ObservedLM(lm, on_requests), []
    for cell, tasks in _tasks_of_cells(name, loaded).items():
        alone = loaded if cell in loaded["groups"] else {"tasks": {cell: loaded["tasks"][cell]}}
        try:
            with silent() as truncated:
                results = evaluate(observed, alone, limit=settings.limit, bootstrap_iters=1000)
        except (AssertionError, ValueError, KeyError) as error:
            raise InputError(
                f"task {cell} cannot run ({type(error).__name__}: {first_line(error)}): change "
                "--num-fewshot or --max-tokens, or leave it out"
            ) from error
        cells.append(_cell(cell, tasks, results, loaded, len(truncated)))
    return cells


class ObservedLM:
    """An LM of lm-eval that reports its progress and refuses answers that it would cut.

    `on_requests` is called after each portion of requests. Raises ValueError for an answer longer
    than the LM takes: only prompts may lose their beginning.
    """

    rank, world_size = 0, 1

    def __init__(self, lm: Any, on_requests: OnCount | None) -> None:
        self.lm, self.on_requests = lm, on_requests

    def loglikelihood(self, requests: list[Any]) -> list[Any]:
        for text in sorted({request.args[1] for request in requests}, key=len, reverse=True):
            if len(text.encode()) > self.lm.max_length:  # no more tokens than bytes
                self._check_room(len(self.lm.tok_encode(text, add_special_tokens=False)))
        return self._in_portions(self.lm.loglikelihood, requests)

    def generate_until(self, requests: list[Any]) -> list[Any]:
        from lm_eval.models.utils import normalize_gen_kwargs

        for request in requests:
            self._check_room(normalize_gen_kwargs(request.args[1])["max_gen_toks"] + 1)
        return self._in_portions(self.lm.generate_until, requests)

    def _check_room(self, tokens: int) -> None:
        if tokens > self.lm.max_length:
            most = f"and are to take {self.lm.max_length} at most"
            raise ValueError(f"prompt and answer need {tokens} tokens or more, {most}")

    def _in_portions(self, answer: Callable[..., list[Any]], requests: list[Any]) -> list[Any]:
        if self.on_requests is None:
            return answer(requests, disable_tqdm=True)
        answers: list[Any] = []
        while len(answers) < len(requests):
            portion = requests[len(answers) : len(answers) + PORTION_REQUESTS]
            answers += answer(portion, disable_tqdm=True)
            self.on_requests(len(answers), len(requests))
        return answers


@contextmanager
def silent() -> Iterator[list[str]]:
    """Show nothing that lm-eval logs; yields its warnings of prompts that it shortened."""
    truncated: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "runcating" in record.getMessage():  # in the wording of all its models
                truncated.append(record.getMessage())

    collector, propagated = Collector(logging.WARNING), LOGGER.propagate
    LOGGER.addHandler(collector)
    LOGGER.propagate = False
    try:
        yield truncated
    finally:
        LOGGER.removeHandler(collector)
        LOGGER.propagate = propagated


def _set_fewshot(task: Any, settings: TaskSettings) -> None:
    """Set the number of examples as `lm_eval.simple_evaluate` does: a task's own 0 stays."""
    own = task.get_config("num_fewshot")
    if own is None or (settings.num_fewshot is not None and own != 0):
        task.set_config(key="num_fewshot", value=settings.num_fewshot or 0)
    task.set_fewshot_seed(seed=settings.seed)


def _cell(
    name: str, tasks: Sequence[str], results: Mapping[str, Any], loaded: Loaded, truncated: int
) -> dict[str, Any]:
    stated = results["results"][name]
    metric, metric_filter = headline(stated)
    error = stated.get(f"{metric}_stderr,{metric_filter}")
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
        "accuracy": float(stated[f"{metric},{metric_filter}"]),
        "standard_error": float(error) if isinstance(error, float) else None,
        "metrics": {k: float(v) for k, v in stated.items() if isinstance(v, float) and isfinite(v)},
        "num_fewshot": fewshot.pop() if len(fewshot) == 1 else None,
        "truncated": truncated,
        "prompts_sha256": hashlib.sha256(prompts.encode()).hexdigest(),
        "items": [_item(task if len(tasks) > 1 else None, sample) for task, sample in samples],
    }


def _item(task: str | None, sample: Mapping[str, Any]) -> dict[str, Any]:
    answers = sample["filtered_resps"]
    scored = isinstance(answers[0], tuple | list)
    scores = [float(answer[0]) for answer in answers] if scored else []
    if not all(map(isfinite, scores)):
        raise InputError(  # argmax would choose a NaN
            f"the log-likelihoods of an item are {scores}, so there is no accuracy: the weights "
            "are broken or overflow their dtype; try --dtype float32, and check the model with "
            "`grasp-deploy verify`"
        )
    return {
        **({"task": task} if task else {}),
        "item": sample["doc_id"],
        **({"loglikelihoods": scores} if scored else {"answer": answers}),
        **{name: float(sample[name]) for name in METRICS if name in sample["metrics"]},
    }
