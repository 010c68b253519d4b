"""The drift of a pruned model from its dense one, on texts, items and prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grasp_deploy.checkpoint.format.shapes import read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, calibrated_beside, load_plan
from grasp_deploy.checkpoint.read.loading import check_tokens, end_tokens, load, load_tokenizer
from grasp_deploy.checkpoint.read.source import file_hashes, positions_at
from grasp_deploy.checkpoint.write.export import check_hashes
from grasp_deploy.config.compress_config import OWN
from grasp_deploy.data import Blocks, beginnings, evaluation_source
from grasp_deploy.data.overlap import NOTEWORTHY_SHARE, calibrated_share
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.card import heldout_corpora, read_texts
from grasp_deploy.evaluate.drift.answers import greedy_answers
from grasp_deploy.evaluate.drift.divergence import mean_drift
from grasp_deploy.evaluate.drift.figures import answers_of, excess_over, flips_of, text_drift
from grasp_deploy.evaluate.drift.record import Answers, Flips
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.evaluate.settings import DriftSettings, TaskSettings
from grasp_deploy.evaluate.tasks.run import bench_tasks
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.files.record import new_record


def measure_drift(
    models: Sequence[BenchModel],
    settings: DriftSettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
) -> dict[str, Any]:
    """Measure the second of two models against the first, and return a `record.DriftRecord`.

    Both are in memory at once: the divergence takes the whole distribution of each. Raises
    InputError for models with different tokens, and for text, items and prompts that do not fit.
    """
    tokenizer = _common_tokenizer(models)
    _check_origin(*models)
    corpora = heldout_corpora(settings.data, (), settings.column)
    texts = read_texts(models[1].path, corpora, settings)
    for blocks in texts.values():
        check_tokens(blocks.token_ids, read_config(models[0].path))
    prompts = _prompts(models, tokenizer, settings)
    tasks = _flips(models, settings, command, on_progress)
    dense, pruned = (
        load(model.path, device=settings.device, dtype=settings.dtype) for model in models
    )
    ends = end_tokens(dense, tokenizer.eos_token_id)
    if prompts and not ends:
        raise InputError(
            "neither the dense model nor its tokenizer names a token that ends an answer: leave "
            "--prompts out, or set eos_token_id in its generation_config.json"
        )
    calibrated = calibrated_beside(models[1].path)
    rows = []
    for corpus, blocks in texts.items():
        means = mean_drift(
            dense, pruned, blocks.token_ids, settings.batch_size, on_progress, corpus.label
        )
        rows.append(text_drift(corpus, blocks, means, _is_calibrated_on(blocks, calibrated)))
    answers = _answers(dense, pruned, prompts, settings.max_new_tokens, ends, on_progress)
    files = [str(path) for path in settings.task_files]
    return new_record(
        "drift",
        command,
        {**asdict(settings), "task_files": files, "data": list(settings.data)},
        models=[model.as_dict() for model in models],
        texts=rows,
        excess=excess_over(rows),
        tasks=tasks,
        answers=answers,
    )


def _check_origin(dense: BenchModel, pruned: BenchModel) -> None:
    """InputError where a plan tells that a model was not made from the other."""
    if dense.shape.pruned and not pruned.shape.pruned:
        raise InputError(
            f"{dense.path} is the pruned one: name the dense model, then the one that was pruned "
            "from it"
        )
    if (pruned.path / PLAN_FILE).is_file():
        check_hashes(load_plan(pruned.path / PLAN_FILE), file_hashes(dense.path))


def _common_tokenizer(models: Sequence[BenchModel]) -> PreTrainedTokenizerBase:
    """The dense model's tokenizer; InputError if the other's tokens are not the same."""
    dense, pruned = (load_tokenizer(model.path) for model in models)
    sizes = {model.shape.vocab_size for model in models}
    if len(sizes) > 1 or dense.get_vocab() != pruned.get_vocab():
        raise InputError(
            f"{models[1].path} was not made from {models[0].path}, since their tokens differ: name "
            "the dense model, then the one that was pruned from it"
        )
    return dense


def _prompts(
    models: Sequence[BenchModel], tokenizer: PreTrainedTokenizerBase, settings: DriftSettings
) -> list[list[int]]:
    """The prompts asked for, if any; InputError if one with its answer exceeds the positions."""
    if settings.prompts is None:
        return []
    source = evaluation_source(
        settings.prompts, column=settings.column, option="--prompts", evaluates=False
    )
    asked = replace(source, what=f"{OWN}:{source.what}")  # read as those of own text
    prompts = beginnings(tokenizer, asked)
    longest = max(map(len, prompts))
    for model in models:
        positions = positions_at(model.path)
        if positions is not None and longest + settings.max_new_tokens > positions:
            raise InputError(
                f"--prompts: one has {longest} tokens, and with {settings.max_new_tokens} of an "
                f"answer exceeds the {positions} positions that {model.name} was made for: lower "
                "--max-new-tokens, or leave long prompts out"
            )
    return prompts


def _flips(
    models: Sequence[BenchModel],
    settings: DriftSettings,
    command: Sequence[str],
    on_progress: OnProgress,
) -> list[Flips]:
    """A row for each file of items; the models are loaded for them and freed again."""
    if not settings.task_files:
        return []
    tasks = TaskSettings(
        task_files=settings.task_files, device=settings.device, dtype=settings.dtype
    )
    cells = bench_tasks(models, tasks, command, on_progress)["cells"]
    dense, pruned = ([c for c in cells if c["model"] == model.name] for model in models)
    return [flips_of(*pair) for pair in zip(dense, pruned, strict=True)]


def _is_calibrated_on(blocks: Blocks, calibrated: Tensor | None) -> bool:
    if calibrated is None:  # no plan tells
        return False
    return calibrated_share(blocks.running_texts, calibrated) >= NOTEWORTHY_SHARE


def _answers(
    dense: PreTrainedModel,
    pruned: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    most_tokens: int,
    ends: set[int],
    on_progress: OnProgress,
) -> Answers | None:
    """The lengths of both models' greedy answers; None without prompts."""
    if not prompts:
        return None
    lengths = []
    for model, name in ((dense, "dense"), (pruned, "pruned")):

        def on_count(done: int, count: int, stage: str = f"answers, {name}") -> None:
            on_progress({"stage": stage, "step": done, "steps": count})

        written = greedy_answers(model, prompts, most_tokens, ends, on_count)
        lengths.append([answer.length for answer in written])
    return answers_of(lengths[0], lengths[1], most_tokens)
