"""Models of true shape without weights: any supported config.json, filled with random numbers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.checkpoint.read.config_file import read_config_at
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import format_bytes

STANDARD_DEVIATION = 0.02  # outputs stay finite in float16 and bfloat16, however deep the model


def random_model(
    path: Path,
    device: torch.device | str,
    dtype: str = "auto",
    *,
    seed: int = 0,
    attention: str = "sdpa",
) -> PreTrainedModel:
    """Build the model of a config.json (the file or its folder) with random weights, in eval mode.

    Weights are drawn on the device in their dtype ("auto": that of config.json), without a copy
    elsewhere or in another dtype. The same seed gives the same weights on the same kind of device.
    Raises InputError for a config.json that is missing, broken or not supported.
    """
    stated = read_config_at(path)
    shape = model_shape(stated)
    device = torch.device(device)
    config = AutoConfig.for_model(**stated | {"initializer_range": STANDARD_DEVIATION})
    forked = [device] if device.type == "cuda" else []  # the CPU's state always is
    try:
        with torch.random.fork_rng(forked), device:
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(
                config,
                dtype=getattr(torch, shape.dtype if dtype == "auto" else dtype),
                attn_implementation=attention,
            )
    except torch.OutOfMemoryError:
        raise InputError(
            f"{device} is too small for the {format_bytes(shape.weight_bytes)} of {path}: "
            "take a smaller model or a larger device"
        ) from None
    return model.eval()
