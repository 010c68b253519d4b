"""The time that a compression takes, from forward and backward passes measured on its device."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape
from grasp_deploy.checkpoint.read.loading import building, model_of
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.pruning.objective import language_loss
from grasp_deploy.pruning.training import freeze

TIMED_BYTES = 2**30  # of layers: those of a larger model stand for the others


def seconds_of(
    config: CompressConfig,
    passes: int,
    shape: ModelShape,
    stated: dict[str, Any],
    dtype: torch.dtype,
    device: torch.device,
) -> float:
    """Seconds of all passes of one process, from the fastest of some by random weights.

    Of a large model some layers are measured, and the others go by their weights.
    """
    layers = max(1, TIMED_BYTES // (shape.layer_parameters(0) * dtype.itemsize))
    kinds = stated.get("layer_types") or []
    if shape.family.is_hybrid:  # up to the first layer with plain attention at least
        layers = max(layers, 1 + kinds.index("full_attention"))
    layers = min(layers, len(shape.layers))
    part = {**stated, "num_hidden_layers": layers, "layer_types": kinds[:layers] or None}
    with device, building(Path(config.model), config.attention):
        model = model_of(part, dtype, config.attention)
        ids = torch.zeros(config.batch_size, config.sequence_length, dtype=torch.int64)
    freeze(model, config.gradient_checkpointing)
    model.get_input_embeddings().register_forward_hook(lambda *made: made[-1].requires_grad_())
    steps = []
    for _ in range(4):  # the first one also starts the libraries, and others may be held up
        began = time.perf_counter()
        language_loss(model, ids).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        steps.append(time.perf_counter() - began)
    step = min(steps) * _multiplied(shape) / _multiplied(model_shape(part))
    each = step / config.batch_size / (2 + config.gradient_checkpointing)
    return passes * each


def _multiplied(shape: ModelShape) -> int:
    """Weights that each token is multiplied by: all but untied embeddings."""
    return shape.parameters - (not shape.tied_embeddings) * shape.vocab_size * shape.hidden_size
