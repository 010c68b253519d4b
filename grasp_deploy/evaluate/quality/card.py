"""The quality card: measure both models, judge, and update the checkpoint's model card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.card.model_card import model_name
from grasp_deploy.checkpoint.card.quality_verdict import excess_loss, quality_verdict
from grasp_deploy.checkpoint.card.update import intact_plan, renew_card
from grasp_deploy.checkpoint.format.shapes import read_config
from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.read.loading import check_tokens, load, load_tokenizer
from grasp_deploy.checkpoint.write.export import base_of
from grasp_deploy.data import Blocks, TextSource, read_blocks
from grasp_deploy.data.overlap import NOTEWORTHY_SHARE, calibrated_share
from grasp_deploy.data.source import display_name
from grasp_deploy.evaluate.perplexity import Perplexity, perplexity
from grasp_deploy.evaluate.quality.corpora import (
    all_sources,
    healing_sources,
    heldout_corpora,
    was_seen,
)
from grasp_deploy.evaluate.quality.records import task_rows
from grasp_deploy.evaluate.quality.settings import CardSettings
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.files.record import versions
from grasp_deploy.stats.clustered import paired_error

SCHEMA_VERSION = 1
SEQUENCE_LENGTH = 2048


def evaluate_card(
    directory: Path, settings: CardSettings, on_progress: OnProgress = ignore_progress
) -> dict[str, Any]:
    """Measure a checkpoint beside its dense model, and write the record into its folder and card.

    All input is checked before a model loads, and the folder changes at the very end. Raises
    InputError for an incomplete checkpoint, a dense model that is out of reach or does not match,
    text that cannot be read, and records of other models.
    """
    plan = intact_plan(directory)
    base = base_of(plan, settings.model, "nothing tells what was lost").directory
    tasks = task_rows(settings.records, base, directory)
    texts = _texts(directory, plan, settings)
    dense, pruned = (
        _measure(folder, texts, settings, on_progress, what)
        for folder, what in ((base, "dense"), (directory, "pruned"))
    )
    corpora = [
        _row(corpus, blocks, dense[corpus.label], pruned[corpus.label], plan)
        for corpus, blocks in texts.items()
    ]
    healed = [display_name(name) for name in healing_sources(plan.provenance)]
    record = {
        "schema_version": SCHEMA_VERSION,
        "verdict": quality_verdict(corpora, tasks, bool(healed)),
        "base_model": model_name(plan.provenance),
        "calibrated_on": [display_name(name) for name in all_sources(plan.provenance)],
        "healed_on": healed,
        "corpora": corpora,
        "tasks": tasks,
        "versions": versions(),
    }
    renew_card(directory, plan, record)
    return record


def _texts(directory: Path, plan: Plan, settings: CardSettings) -> dict[TextSource, Blocks]:
    config, tokenizer = read_config(directory), load_tokenizer(directory)
    positions = config.get("max_position_embeddings") or SEQUENCE_LENGTH
    length = settings.sequence_length or min(SEQUENCE_LENGTH, positions)
    texts = {}
    sources, healed = all_sources(plan.provenance), "healing" in plan.provenance
    for corpus in heldout_corpora(settings.data, sources, settings.column, healed):
        texts[corpus] = read_blocks(tokenizer, corpus, length, settings.sequences)
        check_tokens(texts[corpus].token_ids, config)
    return texts


def _measure(
    folder: Path,
    texts: Mapping[TextSource, Blocks],
    settings: CardSettings,
    on_progress: OnProgress,
    what: str,
) -> dict[str, Perplexity]:
    """Perplexity by corpus; the model is freed at the end, before the next one loads."""
    model = load(folder, device=settings.device, dtype=settings.dtype)
    measured = {}
    for corpus, blocks in texts.items():
        stage = f"{corpus.label}, {what}"

        def on_batch(done: int, steps: int, loss: float, stage: str = stage) -> None:
            on_progress({"stage": stage, "step": done, "steps": steps, "loss": loss})

        measured[corpus.label] = perplexity(model, blocks, settings.batch_size, on_batch)
    return measured


def _row(
    corpus: TextSource, blocks: Blocks, dense: Perplexity, pruned: Perplexity, plan: Plan
) -> dict[str, Any]:
    """The record of a corpus; overlapping tokens reveal calibration text under another name."""
    text, share = blocks.as_dict(), _calibrated_share(blocks, plan)
    named = was_seen(corpus, all_sources(plan.provenance))
    return {
        "name": corpus.label,
        "source": display_name(corpus.what),
        "split": corpus.split,
        "calibrated_on": named or (share is not None and share >= NOTEWORTHY_SHARE),
        "calibrated_on_share": share,
        **{key: text[key] for key in ("sequences", "sequence_length", "token_ids_sha256")},
        "tokens": dense.tokens,
        "tokens_counted": dense.tokens_counted,
        "dtype": dense.dtype,
        "dense": _figures(dense),
        "pruned": _figures(pruned),
        "excess_loss": excess_loss(dense.perplexity, pruned.perplexity),
        "excess_error": paired_error(dense.cluster_losses, pruned.cluster_losses),
    }


def _calibrated_share(blocks: Blocks, plan: Plan) -> float | None:
    if plan.calibrated is None:
        return None
    return calibrated_share([blocks.token_ids.flatten()], plan.calibrated)


def _figures(measured: Perplexity) -> dict[str, Any]:
    names = ("perplexity", "loss_nats_per_token", "standard_error")
    return {name: getattr(measured, name) for name in names}
