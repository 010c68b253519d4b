"""Rounding of 4-bit weights that is learnt on text, by Intel's AutoRound, and its bound.

Each weight is rounded up or down to a step, and groups may clip. Signed gradient descent chooses
which, layer by layer, so that the layer's output changes least on the text.
Paper: https://arxiv.org/abs/2309.05516
"""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grasp_deploy.checkpoint.read.loading import load_checked, load_tokenizer, resolve_device
from grasp_deploy.errors import InputError

BATCH_SIZE, PASSES = 4, 3  # sequences of a step, and how often a layer sees each
SCALE_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}  # AutoRound's names
STEPS = -8, 7  # the least and the greatest that four bits hold
LEAST_RANGE = 0.4  # share of a group's range that must remain; AutoRound clips half of it at most
SMALLEST_SCALE, MOST_STEPS = 2e-5, 1.1  # AutoRound's are 1e-5 and 1; more, as bfloat16 rounds


def auto_round() -> tuple[Any, Any]:
    """AutoRound and the config of its algorithm; InputError where it is not installed."""
    os.environ.setdefault("AR_LOG_LEVEL", "ERROR")  # a bar shows how far it is
    try:
        from auto_round import AutoRound, SignRoundConfig
    except ImportError as error:
        raise InputError(
            f"learning the rounding needs AutoRound ({error}): pip install "
            "'grasp-deploy[quantize]', or leave --calibration out to round to the nearest"
        ) from None
    return AutoRound, SignRoundConfig


def learnt_rounding(
    directory: Path, dtype: str, group: int, token_ids: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Learn rounded matrices `(rows, columns)`, and their scales `(rows, groups)`, by name.

    `token_ids` are `(n, T)`. Raises InputError where AutoRound is not installed.
    """
    AutoRound, SignRoundConfig = auto_round()
    iterations = max(1, PASSES * len(token_ids) // BATCH_SIZE)
    learner: Any = AutoRound(
        load_checked(directory, torch.device("cpu"), dtype),
        tokenizer=load_tokenizer(directory),
        scheme="W4A16",
        alg_configs=SignRoundConfig(group_size=group, iters=iterations),
        dataset=list(token_ids.split(1)),
        nsamples=len(token_ids),
        seqlen=token_ids.shape[1],
        batch_size=BATCH_SIZE,
        scale_dtype=SCALE_DTYPES[dtype],
        device_map=str(resolve_device("auto")),
        enable_torch_compile=False,  # it would compile anew for each layer's width
    )
    modules = learner.quantize()[0].named_modules()
    rounded = {f"{name}.weight": m for name, m in modules if getattr(m, "scale", None) is not None}
    return {name: (m.weight.data.cpu(), m.scale) for name, m in rounded.items()}


def is_rounded(found: dict[str, Tensor], made: dict[str, Tensor], plain: Tensor) -> bool:
    """True if `found` is a 4-bit matrix whose weights are a step at most from the `plain` one's.

    A weight may also be clipped to the last step of its group. `found` and `made`, which is rounded
    to the nearest, hold the matrix's parts by name as compressed-tensors stores them.
    """
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    parts = {name.rpartition(".")[2]: tensor for name, tensor in found.items()}
    sizes = [{name: (t.dtype, t.shape) for name, t in of.items()} for of in (found, made)]
    if "weight_packed" not in parts or sizes[0] != sizes[1]:
        return False
    scale = parts["weight_scale"].float()[..., None]
    steps = unpack_from_int32(parts["weight_packed"], 4, plain.shape)
    steps, groups = (each.float().unflatten(1, (scale.shape[1], -1)) for each in (steps, plain))
    limit = groups.abs().amax(-1, keepdim=True) / STEPS[1] + SMALLEST_SCALE
    away = (steps - (groups / scale).clamp(*STEPS)).abs()
    least = LEAST_RANGE * (limit - SMALLEST_SCALE)
    near = (away < MOST_STEPS) & (scale.abs() <= limit) & (scale.abs() >= least)
    return bool(near.all()) and parts["weight_shape"].tolist() == [*plain.shape]
