"""Perplexity of several models on the same tokens, one model in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.plan import calibrated_beside
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.read.source import positions_at
from grasp_deploy.data import (
    Blocks,
    Documents,
    evaluation_source,
    read_blocks,
    read_token_documents,
)
from grasp_deploy.data.overlap import calibrated_share
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.evaluate.perplexity import Perplexity, perplexity
from grasp_deploy.evaluate.settings import SEQUENCES, PerplexitySettings
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.files.record import new_record
from grasp_deploy.stats.clustered import clustered_error

LONGEST = 2048  # tokens of a sequence, unless the user says otherwise


def measure_perplexity(
    models: Sequence[BenchModel],
    settings: PerplexitySettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
) -> dict[str, Any]:
    """The `PerplexityRecord` of models on one text, as JSON has it.

    Raises InputError for text that does not fit, and for models whose tokens of it differ.
    """
    length = settings.sequence_length
    if length is None:
        length = min(LONGEST, *(positions_at(model.path) or LONGEST for model in models))
    texts = [_text(model.path, settings, length) for model in models]
    for model, text in zip(models, texts, strict=True):
        if text.as_dict()["token_ids_sha256"] != texts[0].as_dict()["token_ids_sha256"]:
            raise InputError(
                f"the tokens of {model.name} are not those of {models[0].name}: measure them one "
                "by one, and compare their bits per byte"
            )
    cells: list[dict[str, Any]] = []
    first: Perplexity | None = None
    for model, text in zip(models, texts, strict=True):
        result = perplexity(
            load(model.path, device=settings.device, dtype=settings.dtype),
            text,
            settings.batch_size,
            on_progress,
            stride=settings.stride,
            tokenizer=load_tokenizer(model.path),
            stage=f"perplexity of {model.name}" if len(models) > 1 else "perplexity",
        )
        cell = {"model": model.name, "mean_over_documents": None, **result.as_dict()}
        calibrated = calibrated_beside(model.path)
        share = None if calibrated is None else calibrated_share(text.running_texts, calibrated)
        cells.append({**cell, **_excess(first, result), "calibrated_on_share": share})
        first = first or result
    return new_record(
        "perplexity",
        command,
        {**asdict(settings), "sequence_length": length},
        models=[model.as_dict() for model in models],
        cells=cells,
    )


def _text(path: Path, settings: PerplexitySettings, length: int) -> Blocks | Documents:
    """The text in a model's tokens; InputError for a stride that leaves tokens out."""
    if settings.stride is not None and settings.stride > length:
        raise InputError(
            f"--stride {settings.stride} would leave out tokens between windows of {length}: use "
            f"{length} or less"
        )
    source = evaluation_source(settings.data, settings.split, settings.column)
    tokenizer, wanted = load_tokenizer(path), settings.sequences or SEQUENCES
    if settings.per_document:
        return read_token_documents(tokenizer, source, length, wanted)
    return read_blocks(tokenizer, source, length, wanted, or_fewer=settings.sequences is None)


def _excess(first: Perplexity | None, result: Perplexity) -> dict[str, float | None]:
    """What a model lost against the first; nulls for the first itself."""
    if first is None:
        return {"excess_nats": None, "excess_error": None}
    pairs = zip(first.cluster_losses, result.cluster_losses, strict=True)
    sizes = result.cluster_tokens
    summed = [(after - before) * n for (before, after), n in zip(pairs, sizes, strict=True)]
    return {
        "excess_nats": result.loss_nats_per_token - first.loss_nats_per_token,
        "excess_error": clustered_error(summed, sizes),
    }
