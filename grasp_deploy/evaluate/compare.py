"""Models on the same texts: what each loses above the first, and how far it lies from it."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import torch
from msgspec import Meta, Struct
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grasp_deploy.checkpoint.footprint import Footprint, RecordModel
from grasp_deploy.checkpoint.plan import plan_beside
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.read.source import fewest_positions
from grasp_deploy.data import Blocks, TextSource
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.answers import answers, prompts_for
from grasp_deploy.evaluate.models import BenchModel
from grasp_deploy.evaluate.perplexity import measure
from grasp_deploy.evaluate.settings import CompareSettings
from grasp_deploy.evaluate.texts import (
    LONGEST,
    calibrated_on,
    heldout_corpora,
    is_calibrated_on,
    read_texts,
)
from grasp_deploy.files.progress import OnProgress, ignore_progress
from grasp_deploy.files.record import new_record
from grasp_deploy.stats.clustered import error_of_mean, paired_error, standard_error
from grasp_deploy.stats.wording import grouped, listed

Texts = dict[TextSource, Blocks]
Loss = Annotated[float, Meta(ge=0, le=710)]  # beyond it there is no perplexity
Excess = Annotated[float, Meta(ge=-710, le=710)]
Share = Annotated[float, Meta(ge=0, le=1)]


class LossCell(Struct):
    """A model on a text; errors are null for one sequence."""

    model: str
    perplexity: Annotated[float, Meta(ge=1)]
    loss_nats_per_token: Loss
    standard_error: Loss | None
    tokens: Annotated[int, Meta(ge=1)]
    data: dict[str, Any]
    excess_nats: Excess  # above the first model's
    excess_error: Loss | None  # paired by sequence
    calibrated_on_share: Share | None  # null where it is not known
    calibrated_on: bool = False  # by its share, or by its name
    divergence: Excess | None = None  # KL(first || this), nats per token; two old records have none
    agreement: Share | None = None  # on the most likely token

    @property
    def text(self) -> str:
        return str(self.data.get("name") or str(self.data.get("source")).rpartition("/")[2])

    @property
    def is_calibrated_on(self) -> bool:
        return self.calibrated_on or is_calibrated_on(self.calibrated_on_share)


class Answers(Struct):
    """What each model says to a prompt."""

    prompt: str
    answers: list[str]


@dataclass(frozen=True)
class LossPoint:
    """A model with its loss and its divergence from the first model, in nats per token."""

    name: str
    footprint: Footprint
    loss: float
    error: float | None  # standard error of what it lost against the first model
    divergence: float | None = None


class CompareRecord(Struct):
    """A cell for each text and model; the first model is the one that others are compared with."""

    benchmark: str
    models: Annotated[list[RecordModel], Meta(min_length=1)]
    cells: Annotated[list[LossCell], Meta(min_length=1)]
    said: list[Answers] = []

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if any([cell.model for cell in cells] != names for cells in self.texts):
            raise ValueError("its cells are not one for each model, in their order, on each text")
        if any(len(said.answers) != len(names) for said in self.said):
            raise ValueError("its answers to a prompt are not one for each model")

    @property
    def texts(self) -> list[list[LossCell]]:
        """The cells of each text."""
        return grouped(self.cells, lambda cell: cell.text)

    @property
    def counted(self) -> list[list[LossCell]]:
        """The texts that no model was calibrated on; all of them if there is none."""
        unseen = [cells for cells in self.texts if not any(c.is_calibrated_on for c in cells)]
        return unseen or self.texts

    @property
    def points(self) -> list[LossPoint]:
        """The models with their mean losses over the texts that count."""
        points = []
        for model, cells in zip(self.models, zip(*self.counted, strict=True), strict=True):
            loss = statistics.fmean(cell.loss_nats_per_token for cell in cells)
            error = error_of_mean([cell.excess_error for cell in cells])
            known = [cell.divergence for cell in cells if cell.divergence is not None]
            drift = statistics.fmean(known) if len(known) == len(cells) else None
            points.append(LossPoint(model.name, model.footprint, loss, error, drift))
        return points

    @property
    def text(self) -> str:
        """The number of tokens and their source, and whether a model was calibrated on it."""
        firsts = [cells[0] for cells in self.counted]
        seen = any(cell.is_calibrated_on for cells in self.counted for cell in cells)
        tokens = sum(cell.tokens for cell in firsts)
        names = listed(cell.text for cell in firsts)
        return f"{tokens:,} tokens of {names}{', calibrated on' if seen else ''}"


def compare(
    models: Sequence[BenchModel],
    settings: CompareSettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
    on_record: OnProgress = ignore_progress,
) -> dict[str, Any]:
    """Measure models on texts; returns a `CompareRecord` as plain JSON types.

    The first model and one other are in memory at once: a divergence takes the whole distribution
    of each. After each pair `on_record` gets the record so far. Raises InputError for text that
    does not fit, and for models whose tokens of it differ.
    """
    longest = fewest_positions((model.path for model in models), LONGEST)
    settings = replace(settings, sequence_length=settings.sequence_length or longest)
    texts = _common_texts(models, settings)
    first = load(models[0].path, device=settings.device, dtype=settings.dtype)
    tokenizer = load_tokenizer(models[0].path)
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    said = [answers(first, tokenizer)]
    for others in [[model] for model in models[1:]] or [[]]:
        found, told = _cells(first, [models[0], *others], texts, settings, tokenizer, on_progress)
        cells |= found
        said += told
        done = models[: len(said)]
        record = new_record(
            "compare",
            command,
            asdict(settings),
            models=[model.as_dict() for model in done],
            cells=[cells[corpus.label, model.name] for corpus in texts for model in done],
            said=[
                {"prompt": prompt, "answers": list(told)}
                for (prompt, _), *told in zip(prompts_for(tokenizer), *said, strict=True)
            ],
        )
        on_record(record)
    return record


def _common_texts(models: Sequence[BenchModel], settings: CompareSettings) -> Texts:
    """The texts in tokens that are the same for all models."""
    corpora = heldout_corpora(settings.data, column=settings.column)
    first, *others = (read_texts(model.path, corpora, settings) for model in models)
    for model, texts in zip(models[1:], others, strict=True):
        pairs = zip(first.values(), texts.values(), strict=True)
        alike = all(torch.equal(before.token_ids, after.token_ids) for before, after in pairs)
        if not alike or model.shape.vocab_size != models[0].shape.vocab_size:
            raise InputError(
                f"the tokens of {model.name} are not those of {models[0].name}: compare models of "
                "one tokenizer"
            )
    return first


def _cells(
    first: PreTrainedModel,
    models: Sequence[BenchModel],
    texts: Texts,
    settings: CompareSettings,
    tokenizer: PreTrainedTokenizerBase,
    on_progress: OnProgress,
) -> tuple[dict[tuple[str, str], dict[str, Any]], list[list[str]]]:
    """Cells by text and model, and answers; all models but the first are freed at the end."""
    loading = {"device": settings.device, "dtype": settings.dtype}
    loaded = [first, *(load(model.path, **loading) for model in models[1:])]
    cells = {}
    for corpus, blocks in texts.items():
        stage = f"{corpus.label}, {models[-1].name}"
        found = measure(loaded, blocks, settings.batch_size, on_progress, stage=stage)
        for model, measured in zip(models, found, strict=True):
            seen, share = calibrated_on(corpus, blocks, plan_beside(model.path), model.shape)
            cells[corpus.label, model.name] = {
                "model": model.name,
                "data": {"name": corpus.label, **blocks.as_dict()},
                "calibrated_on": seen,
                "calibrated_on_share": share,
                **measured.as_dict(),
                "tokens": measured.tokens,
                "dtype": measured.dtype,
                "excess_nats": measured.loss_nats_per_token - found[0].loss_nats_per_token,
                "excess_error": paired_error(found[0].losses, measured.losses),
                "divergence": statistics.fmean(measured.divergences),
                "divergence_error": standard_error(measured.divergences),
                "agreement": statistics.fmean(measured.agreements),
                "agreement_error": standard_error(measured.agreements),
            }
    return cells, [answers(model, tokenizer) for model in loaded[1:]]
