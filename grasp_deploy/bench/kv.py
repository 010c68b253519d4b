"""`bench kv`: tokens and sequences that a memory holds beside the weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from grasp_deploy.bench.record import BenchCell, BenchRecord, OnRecord, PositiveCount, check_room
from grasp_deploy.checkpoint.footprint import BATCHED_TOKENS, Load
from grasp_deploy.checkpoint.limits import BLOCK_TOKENS, found_platform, installed_platform
from grasp_deploy.checkpoint.read.source import fewest_positions
from grasp_deploy.config.option import BENCH_DTYPE_HELP, BENCH_SEED_HELP, Count, Dtype, Seed, option
from grasp_deploy.engine.offline import KvCapacity, measured_capacity, predict_capacity
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, check_positions, model_folder
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter
from grasp_deploy.files.sizes import format_bytes, parse_bytes

DEFAULT_CONTEXT_TOKENS = 2048


@dataclass(frozen=True)
class KvSettings:
    """A memory for weights and KV cache together, and the tokens of a full sequence."""

    memory_bytes: int = option(
        "Memory for weights and KV cache together, such as 16GiB. Default: 20GiB.",
        20 * 2**30,
        flag="--gpu-memory",
        parse=parse_bytes,
    )
    context_tokens: Count | None = option(
        "Tokens of a full sequence. Default: 2048, or the models' limit if lower.",
        None,
        flag="--context",
    )
    predict_only: bool = option("Predict without starting vLLM.", False)
    dtype: Dtype = option(BENCH_DTYPE_HELP, "auto")  # recorded only: the models' shapes have it
    seed: Seed = option(BENCH_SEED_HELP, 0)
    block_tokens: int = 16  # this and the next: filled in for the record
    random_weights: bool = False


class Cell(BenchCell):
    """One model with the KV cache that its weights leave of the memory."""

    memory_bytes: PositiveCount  # of the cache alone
    context_tokens: PositiveCount
    kv_bytes_per_token: PositiveCount
    predicted: KvCapacity
    measured: KvCapacity | None = None  # None: vLLM was not run

    @property
    def held(self) -> KvCapacity:
        """The capacity: measured, or else predicted."""
        return self.measured or self.predicted


KvRecord = BenchRecord[KvSettings, Cell]  # one cell for each model


def bench_kv(
    models: Sequence[BenchModel],
    settings: KvSettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
    on_record: OnRecord = ignore_progress,
) -> KvRecord:
    """Predict what the KV cache of every model holds, and ask vLLM where it is installed.

    A model's KV cache gets what its weights leave of the memory, so that smaller weights count too.
    A real engine is started on each model with a cache of that size, unless `predict_only` is set.
    After each `on_record` gets the record so far. Raises InputError for a context that a model was
    not made for and for a memory that does not hold one sequence beside the weights, ChildError if
    vLLM fails.
    """
    longest = fewest_positions((model.path for model in models), DEFAULT_CONTEXT_TOKENS)
    context_tokens = settings.context_tokens or longest
    check_positions(models, context_tokens, "--context")
    platform = found_platform()
    measures = platform is not None and not settings.predict_only
    if measures:
        installed_platform()  # which refuses a vLLM that a variable redirects
    if measures and platform == "cpu":
        check_room(settings.memory_bytes, "--gpu-memory is", "ask for less, or give --predict-only")
    settings = replace(
        settings,
        context_tokens=context_tokens,
        block_tokens=BLOCK_TOKENS[platform or "cuda"],
        random_weights=models[0].random_weights,
    )
    cells = [_predicted(model, settings, context_tokens) for model in models]
    if measures:
        advance = step_counter(on_progress, "asking vLLM", len(models))
        for place, (model, cell) in enumerate(zip(models, cells, strict=True), start=1):
            engine = {
                "dtype": model.shape.dtype,
                "kv_cache_memory_bytes": cell.memory_bytes,
                "max_model_len": context_tokens,
                "max_num_seqs": 1,  # the batch size does not change the cache
                "max_num_batched_tokens": BATCHED_TOKENS,  # of a step, which windows keep
                **({"load_format": "dummy"} if model.random_weights else {}),
                "seed": settings.seed,
            }
            with model_folder(model) as path:
                cell.measured = measured_capacity(path, engine)
            advance()
            on_record(KvRecord.made("kv", command, settings, models, cells[:place]))
    return KvRecord.made("kv", command, settings, models, cells)


def _predicted(model: BenchModel, settings: KvSettings, context_tokens: int) -> Cell:
    shape, memory_bytes = model.shape, settings.memory_bytes
    pool_bytes = memory_bytes - shape.weight_bytes
    token_bytes, state_bytes = shape.kv_bytes_per_token(), shape.state_bytes_per_sequence
    load = Load(1, context_tokens, block_tokens=settings.block_tokens)
    sizes = token_bytes, load.blocks_each(shape.windows), load.block_tokens, state_bytes
    capacity = predict_capacity(pool_bytes, *sizes)
    if capacity.sequences < 1:
        raise InputError(
            f"--gpu-memory of {format_bytes(memory_bytes)} is too little for the "
            f"{format_bytes(shape.weight_bytes)} of {model.name}'s weights and one sequence of "
            f"{context_tokens} tokens: ask for more memory or a shorter --context"
        )
    return Cell(model.name, pool_bytes, context_tokens, token_bytes, capacity)
