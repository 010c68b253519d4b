"""`bench memory`: memory of one prefill, predicted from config.json and measured on a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import Struct

from grasp_deploy.bench.record import BenchCell, BenchRecord, Count, OnRecord, PositiveCount
from grasp_deploy.checkpoint.read.source import fewest_positions
from grasp_deploy.config.option import BENCH_DTYPE_HELP, Dtype, option
from grasp_deploy.config.option import Count as CountOption
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, check_positions
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter
from grasp_deploy.stats.wording import listed

DEFAULT_LENGTHS = (256, 512, 1024, 2048)


@dataclass(frozen=True)
class MemorySettings:
    """The prefills to measure: `batch` prompts at each length."""

    prompt_tokens: tuple[CountOption, ...] = option(
        "Tokens of a prompt, one measurement for each length. Default: 256,512,1024,2048, or up to "
        "the models' limit if lower.",
        (),
    )
    batch: CountOption = option("Prompts in a prefill.", 4)
    device: str = option("auto, cuda, cuda:1, ...; cpu: predict only.", "auto")
    dtype: Dtype = option(BENCH_DTYPE_HELP, "auto")  # recorded only: the models' shapes have it
    random_weights: bool = False  # filled in for the record


class Sizes(Struct, frozen=True):
    """Bytes of a prefill, predicted or measured."""

    weight_bytes: Count
    kv_bytes: Count
    peak_bytes: PositiveCount  # weights and KV cache included
    other_bytes: Count  # peak - weights - KV cache


class Cell(BenchCell):
    """One model at one prompt length."""

    prompt_tokens: PositiveCount
    batch: PositiveCount
    predicted: Sizes
    measured: Sizes | None  # None without a GPU

    @property
    def point(self) -> int:
        return self.prompt_tokens

    @property
    def sizes(self) -> Sizes:
        """The bytes: measured, or else predicted."""
        return self.measured or self.predicted


MemoryRecord = BenchRecord[MemorySettings, Cell]  # all models at all prompt lengths


def bench_memory(
    models: Sequence[BenchModel],
    settings: MemorySettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
    on_record: OnRecord = ignore_progress,
) -> MemoryRecord:
    """Predict a prefill of every model at every length, and measure it where there is a GPU.

    After each model `on_record` gets the record so far. Raises InputError for a device that is not
    there or too small, and for quantised models.
    """
    from grasp_deploy.bench.prefill import measure_prefills, predict_prefill  # help needs no torch
    from grasp_deploy.checkpoint.read.loading import resolve_device

    if quantised := [model.name for model in models if model.shape.quantization is not None]:
        raise InputError(
            f"bench memory wants plain weights: leave out {listed(quantised)}, which "
            f"{'are' if len(quantised) > 1 else 'is'} quantised"
        )
    device, lengths = str(resolve_device(settings.device)), settings.prompt_tokens
    if not lengths:
        paths = [model.path for model in models]
        lengths = tuple(sorted({fewest_positions(paths, tokens) for tokens in DEFAULT_LENGTHS}))
    check_positions(models, max(lengths), "--prompt-tokens")
    is_random = models[0].random_weights
    settings = replace(settings, prompt_tokens=lengths, device=device, random_weights=is_random)
    cells = []
    work = "predicting" if device == "cpu" else "measuring"
    stage = f"{work} prefills of {listed(lengths)} tokens"
    advance = step_counter(on_progress, stage, len(models))
    for model in models:
        measured = {} if device == "cpu" else measure_prefills(model, settings)
        for tokens in lengths:
            predicted = predict_prefill(model, settings.batch, tokens)
            cell = Cell(model.name, tokens, settings.batch, predicted, measured.get(tokens))
            cells.append(cell)
        advance()
        record = MemoryRecord.made("memory", command, settings, models, cells)
        on_record(record)
    return record
