"""`bench memory`: memory of one prefill, predicted from config.json and measured."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import Struct, convert

from grasp_deploy.bench.record import (
    BenchCell,
    BenchRecord,
    Count,
    PositiveCount,
    check_positions,
    check_room,
)
from grasp_deploy.checkpoint.format.shapes import LayerShape, ModelShape
from grasp_deploy.config.option import (
    BENCH_DTYPE_HELP,
    BENCH_SEED_HELP,
    DEVICE_HELP,
    REPETITIONS_HELP,
    Seed,
    option,
)
from grasp_deploy.config.option import Count as CountOption
from grasp_deploy.engine.child import child
from grasp_deploy.files.progress import OnProgress, ignore_progress, step_counter

if TYPE_CHECKING:  # it imports safetensors, which no help text needs
    from grasp_deploy.evaluate.models import BenchModel

FLOAT32_BYTES, INT64_BYTES = 4, 8
CHILD = "grasp_deploy.bench.engines.memory_child"
# Resident memory must follow the tensors that are alive. So the C library takes each from the
# kernel and returns it at once (by default it would keep freed memory), and threads share one heap.
ALLOCATOR_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(64 * 2**10),
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_TOP_PAD_": "0",
    "MALLOC_ARENA_MAX": "1",
}


@dataclass(frozen=True)
class MemorySettings:
    """The prefills to measure: `batch` prompts at each length."""

    prompt_tokens: tuple[CountOption, ...] = option(
        "Tokens of a prompt, one measurement for each length.", (256, 512, 1024, 2048)
    )
    batch: CountOption = option("Prompts in a prefill.", 4)
    repetitions: CountOption = option(REPETITIONS_HELP, 3)
    device: str = option(DEVICE_HELP, "auto")
    dtype: str = option(BENCH_DTYPE_HELP, "auto")  # recorded only: the models' shapes have it
    seed: Seed = option(BENCH_SEED_HELP, 0)
    random_weights: bool = False  # filled in for the record


class Sizes(Struct, frozen=True, omit_defaults=True):
    """Bytes of a prefill, predicted or measured."""

    weight_bytes: Count
    kv_bytes: Count
    peak_bytes: PositiveCount  # weights and KV cache included
    other_bytes: Count = 0  # peak - weights - KV cache; samples go without


class Cell(BenchCell):
    """One model at one prompt length; `measured` are the medians of the samples."""

    prompt_tokens: PositiveCount
    batch: PositiveCount
    predicted: Sizes
    measured: Sizes
    samples: list[Sizes]

    @property
    def point(self) -> int:
        return self.prompt_tokens


class MemoryRecord(BenchRecord[Cell], kw_only=True):
    """All models at all prompt lengths."""

    settings: MemorySettings


def bench_memory(
    models: Sequence[BenchModel],
    settings: MemorySettings,
    command: Sequence[str],
    on_progress: OnProgress = ignore_progress,
) -> MemoryRecord:
    """Measure a prefill of every model at every length, each in a child process of its own.

    Raises InputError for a device that is not there or too small, ChildError if a child fails.
    """
    from grasp_deploy.checkpoint.read.loading import resolve_device  # help needs no torch

    device = str(resolve_device(settings.device))
    settings = replace(settings, device=device, random_weights=models[0].random_weights)
    check_positions(models, max(settings.prompt_tokens), "--prompt-tokens")
    points = [(model, tokens) for model in models for tokens in settings.prompt_tokens]
    for model, tokens in points if device == "cpu" else []:
        check_room(
            predict_prefill(model.shape, settings.batch, tokens).peak_bytes,
            f"{settings.batch} prompts of {tokens} tokens of {model.name} take",
            "ask for fewer or shorter prompts",
        )
    cells = []
    advance = step_counter(on_progress, "measuring prefills", len(points))
    for model, tokens in points:
        cells.append(measured_cell(model, tokens, settings))
        advance()
    return MemoryRecord.made("memory", command, settings, models, cells)


def measured_cell(model: BenchModel, prompt_tokens: int, settings: MemorySettings) -> Cell:
    """Predict the prefills of random prompts of this length, and measure them in a child."""
    request = {
        "path": str(model.path),
        "random_weights": model.random_weights,
        "device": settings.device,
        "dtype": model.shape.dtype,
        "seed": settings.seed,
        "batch": settings.batch,
        "prompt_tokens": prompt_tokens,
        "repetitions": settings.repetitions,
    }
    with child(CHILD, {**os.environ, **ALLOCATOR_SETTINGS}, name="the memory child") as ask:
        samples = convert(ask(request)["samples"], list[Sizes])
    weights, kv, peak = (
        round(statistics.median(getattr(sample, f"{name}_bytes") for sample in samples))
        for name in ("weight", "kv", "peak")
    )
    predicted = predict_prefill(model.shape, settings.batch, prompt_tokens)
    measured = Sizes(weights, kv, peak, peak - weights - kv)
    return Cell(model.name, prompt_tokens, settings.batch, predicted, measured, samples)


def predict_prefill(shape: ModelShape, batch: int, prompt_tokens: int) -> Sizes:
    """Predict one prefill of `batch` prompts through the stock transformers forward.

    The path is the one for serving: KV cache kept, SDPA without a materialised mask, logits of the
    last position only, no gradients, full attention. All tensors that are alive at the worst moment
    are counted, to the byte. Not counted: scratch memory inside kernels (a BLAS workspace, the
    attention kernel's log-sum-exp), and what an allocator rounds up or holds back.

    The peak is the largest of these moments (`w` bytes a value; per token if nothing else is said):

    - in layer i: what `_layer_bytes` says, and the KV cache of the layers up to i;
    - the head: the last hidden states `d·w`, and the logits `V·w` of each prompt.

    Alive through all layers: the embeddings that came in `d·w`, the token ids 8, and for each
    position its number 8 and the rotary tables `2·D·w`.
    """
    tokens, width = batch * prompt_tokens, shape.bytes_per_parameter
    hidden = shape.hidden_size * width
    everywhere = tokens * (hidden + INT64_BYTES)
    everywhere += prompt_tokens * (INT64_BYTES + 2 * shape.head_dim * width)
    moments, kv_bytes = [], 0
    for index, layer in enumerate(shape.layers):
        kv_bytes += tokens * 2 * layer.num_key_value_heads * shape.head_dim * width
        layer_input = hidden if index else 0  # the first layer's is the embeddings
        alive = layer_input + _layer_bytes(shape, layer)
        moments.append(kv_bytes + everywhere + tokens * alive)
    head = tokens * (hidden + INT64_BYTES) + batch * shape.vocab_size * width
    most, weights = max(*moments, kv_bytes + head), shape.weight_bytes
    return Sizes(weights, kv_bytes, weights + most, most - kv_bytes)


def _layer_bytes(shape: ModelShape, layer: LayerShape) -> int:
    """Bytes per token that a layer makes at its worst moment, beside its input and its KV cache.

    With `h = d·w`, `q = H·D·w`, `k = K·D·w` (a value is as wide) and `f = F·w`:

    - q-norm (Qwen3): the layer's normed input h, q, and what RMSNorm makes of q's H rows; k and v
      are not there yet;
    - rotary of q: h, q, three temporaries of q, k and v; these two are not in the cache yet, where
      they are counted, and so left out here;
    - rotary of k: the same with the rotated q and three temporaries of k;
    - RMSNorm after attention: the residual h, and what RMSNorm makes of it;
    - MLP: the residual h, its input h, and gate, up and their product, `3·f`;
    - down_proj: the residual h, its input h, the product f, and what it returns, h.

    RMSNorm makes two float32 copies of its input, and a variance and its root for each row. What
    is never the most, because another of these always takes more, is left out (such as o_proj).
    """
    width = shape.bytes_per_parameter
    heads = layer.num_attention_heads
    hidden, ffn = shape.hidden_size * width, layer.intermediate_size * width
    queries = heads * shape.head_dim * width
    keys = layer.num_key_value_heads * shape.head_dim * width
    attention = hidden + queries + max(3 * queries, queries + 3 * keys)
    if shape.family.qk_norm:
        q_norm = heads * _norm_bytes(shape.head_dim)
        attention = max(attention, hidden + queries + q_norm - 2 * keys)
    norm = hidden + _norm_bytes(shape.hidden_size)
    return max(attention, norm, 2 * hidden + max(3 * ffn, ffn + hidden))


def _norm_bytes(row: int) -> int:
    return 2 * FLOAT32_BYTES * (row + 1)
