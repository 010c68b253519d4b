"""The quality card: measure both models, judge, and update the checkpoint's model card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from grasp_deploy.checkpoint.card.model_card import (
    intact_plan,
    lasting_files,
    model_name,
    renew_card,
)
from grasp_deploy.checkpoint.card.quality_verdict import excess_loss, quality_verdict
from grasp_deploy.checkpoint.plan import sources_of
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.read.source import file_hashes
from grasp_deploy.checkpoint.read.validate import read_folder
from grasp_deploy.checkpoint.write.export import base_of
from grasp_deploy.data import Blocks, TextSource
from grasp_deploy.data.source import display_name
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.answers import answers, prompts_for
from grasp_deploy.evaluate.perplexity import Measured, perplexity
from grasp_deploy.evaluate.settings import CardSettings
from grasp_deploy.evaluate.tasks.accuracy import read_tasks_record, task_changes
from grasp_deploy.evaluate.texts import calibrated_on, heldout_corpora, read_texts
from grasp_deploy.files.outputs import check_rewritable
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.files.record import versions
from grasp_deploy.stats.clustered import paired_error

SCHEMA_VERSION = 1


def evaluate_card(
    directory: Path, settings: CardSettings, on_progress: OnProgress = ignore_progress
) -> dict[str, Any]:
    """Measure a checkpoint beside its dense model, and write the record into its folder and card.

    All input is checked before a model loads, and the folder changes at the very end. Raises
    InputError for an incomplete checkpoint, a dense model that is out of reach or does not match,
    text that cannot be read, records of other models, and a folder that was replaced meanwhile.
    """
    measured = lasting_files(directory)
    plan = intact_plan(directory)
    check_rewritable(directory)
    base = base_of(plan, settings.model, "nothing tells what was lost").directory
    tasks = task_rows(settings.records, base, directory)
    corpora = heldout_corpora(settings.data, sources_of(plan.provenance), settings.column)
    texts = read_texts(directory, corpora, settings)
    tokenizer = load_tokenizer(directory)
    (dense, says), (pruned, says_now) = (
        _measure(folder, tokenizer, texts, settings, on_progress, what)
        for folder, what in ((base, "dense"), (directory, "pruned"))
    )
    shape = read_folder(directory).shape
    rows = [
        _row(text, before, after, calibrated_on(*text, plan, shape))
        for text, before, after in zip(texts.items(), dense, pruned, strict=True)
    ]
    record = {
        "schema_version": SCHEMA_VERSION,
        "verdict": quality_verdict(rows, tasks),
        "base_model": model_name(plan.provenance),
        "calibrated_on": [display_name(name) for name in sources_of(plan.provenance)],
        "corpora": rows,
        "tasks": tasks,
        "answers": [
            {"prompt": prompt, "dense": before, "pruned": after}
            for (prompt, _), before, after in zip(
                prompts_for(tokenizer), says, says_now, strict=True
            )
        ],
        "versions": versions(),
    }
    renew_card(directory, plan, record, measured)
    return record


def task_rows(paths: Sequence[Path], base: Path, directory: Path) -> list[dict[str, Any]]:
    """The rows of `task_changes` of a checkpoint and its dense model, from records of tasks.

    The hashes of its weights identify a model. Raises InputError for a file that is not a record
    of tasks, or lacks one of the two models, and for a task that two records have.
    """
    rows: list[dict[str, Any]] = []
    for path in paths:
        record = read_tasks_record(path)
        dense = _cells(record, path, base, "the dense model")
        for row in task_changes(dense, _cells(record, path, directory, str(directory))):
            if row["task"] in [other["task"] for other in rows]:
                raise InputError(f"--record {path} has {row['task']} once more: name one of them")
            rows.append(row)
    return rows


def _cells(record: dict[str, Any], path: Path, folder: Path, what: str) -> list[dict[str, Any]]:
    hashes = {model["name"]: model["weight_hashes"] for model in record["models"]}
    wanted = file_hashes(folder)
    same = [name for name, found in hashes.items() if wanted.items() <= found.items()]
    if not same:
        raise InputError(
            f"--record {path} has the models {', '.join(hashes)}, and none of them is {what}: name "
            "a record of `grasp-deploy evaluate tasks` on the dense model and this checkpoint"
        )
    return [cell for cell in record["cells"] if cell["model"] == same[0]]


def _measure(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    texts: Mapping[TextSource, Blocks],
    settings: CardSettings,
    on_progress: OnProgress,
    what: str,
) -> tuple[list[Measured], list[str]]:
    """Perplexity of each corpus, and answers; the model is freed before the next one loads."""
    model = load(folder, device=settings.device, dtype=settings.dtype)
    return [
        perplexity(model, blocks, settings.batch_size, on_progress, stage=f"{corpus.label}, {what}")
        for corpus, blocks in texts.items()
    ], answers(model, tokenizer)


def _row(
    text: tuple[TextSource, Blocks],
    dense: Measured,
    pruned: Measured,
    learnt: tuple[bool, float | None],
) -> dict[str, Any]:
    """The record of a corpus."""
    corpus, blocks = text
    of_text = blocks.as_dict()
    return {
        "name": corpus.label,
        "source": display_name(corpus.what),
        "split": corpus.split,
        "calibrated_on": learnt[0],
        "calibrated_on_share": learnt[1],
        **{key: of_text[key] for key in ("sequences", "sequence_length", "token_ids_sha256")},
        **{key: getattr(dense, key) for key in ("tokens", "dtype")},
        "dense": dense.as_dict(),
        "pruned": pruned.as_dict(),
        "excess_loss": excess_loss(dense.perplexity, pruned.perplexity),
        "excess_error": paired_error(dense.losses, pruned.losses),
    }
