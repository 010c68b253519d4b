"""Loading models and tokenizers, with one clear line for what stands in the way."""

from __future__ import annotations

import logging
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers.models import BPE
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as transformers_logging

from grasp_deploy.checkpoint.format.registration import register
from grasp_deploy.checkpoint.format.shapes import (
    DTYPES,
    limits_of,
    model_shape,
    read_config,
)
from grasp_deploy.checkpoint.limits import check_positions
from grasp_deploy.checkpoint.read.dtypes import wanted_dtype
from grasp_deploy.checkpoint.read.source import resolve_model
from grasp_deploy.checkpoint.read.validate import read_folder, refuse_quantised
from grasp_deploy.data.trial import traits
from grasp_deploy.errors import InputError, first_line, is_out_of_memory
from grasp_deploy.files.sizes import format_bytes

logger = logging.getLogger(__name__)
# Keys that transformers reads beside the fields of a config's class, unless they are null.
ALSO_DECLARED = {
    *("torch_dtype", "rope_theta", "rope_scaling", "partial_rotary_factor", "head_dim"),
    *("original_max_position_embeddings", "per_layer_config", "quantization_config"),
}
# Never code nor Mistral's own format: `engine.flags.FORMAT` tells vLLM the same.
TOKENIZERS = {"local_files_only": True, "trust_remote_code": False, "mistral_format": False}
STANDARD_DEVIATION = 0.02  # of random weights: outputs stay finite in float16, however deep
register()


def load(
    model: str | Path, *, device: str = "auto", dtype: str = "auto", attention: str = "sdpa"
) -> PreTrainedModel:
    """Load a checkpoint or a dense model of a supported family, ready to evaluate.

    `model` is a folder or a hub id; `dtype` "auto" is as in `wanted_dtype`. Raises InputError if
    files are missing or damaged, or the device or the attention implementation is not there.
    """
    if dtype not in ("auto", *DTYPES):
        raise InputError(f"--dtype {dtype} is unknown: use auto, {', '.join(DTYPES)}")
    directory = resolve_model(str(model)).directory
    return load_checked(directory, resolve_device(device), dtype, attention)


def load_checked(
    directory: Path, device: torch.device, dtype: str, attention: str
) -> PreTrainedModel:
    """Load a folder once `read_folder` has passed it; in eval mode, straight onto the device."""
    stored = read_folder(directory)
    transformers_logging.disable_progress_bar()  # noise: many models are loaded
    wanted = wanted_dtype(stored.shape.dtype, device, dtype)
    logger.info("loading %s onto %s in %s", directory, device, wanted)
    try:
        with device:
            model = AutoModelForCausalLM.from_pretrained(
                directory,
                config=class_config(stored.config),
                dtype=wanted,
                attn_implementation=attention,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,  # and never asked for on stdin
            )
    except Exception as error:  # whatever transformers makes of an odd config.json
        if is_out_of_memory(error):
            raise
        other = "" if attention == "sdpa" else f", or drop --set attention={attention}"
        raise not_loadable(directory, error, other) from error
    model.config.return_dict = True  # outputs are read by name, whatever the file asks for
    return model.eval()


def with_weights(directory: Path, state: dict[str, Tensor]) -> nn.Module:
    """The float32 model that a folder's config.json describes, with these weights; in eval mode.

    Raises InputError if transformers can make none of that config.json.
    """
    try:
        config = class_config(read_config(directory))
        config.return_dict = True
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )
        tied = {"lm_head.weight": state["model.embed_tokens.weight"]}  # absent where it is tied
        model.load_state_dict({**tied, **state})
    except Exception as error:  # as above
        if is_out_of_memory(error):
            raise
        raise not_loadable(directory, error) from error
    return model.eval()


def class_config(stated: dict[str, Any]) -> PreTrainedConfig:
    """What transformers makes of the keys of a parsed config.json that its class declares.

    It would take any other key for an attribute too: one that names a file or a kernel to load, or
    that stands in for a method.
    """
    declared = {field.name for field in fields(CONFIG_MAPPING[stated["model_type"]])}
    declared |= {key for key in ALSO_DECLARED if stated.get(key) is not None}
    kept = {key: value for key, value in stated.items() if key in declared}
    return AutoConfig.for_model(stated["model_type"], **kept)


def not_loadable(directory: Path, error: Exception, other: str = "") -> InputError:
    """The error of a config.json that transformers cannot build a model of."""
    return InputError(
        f"{directory} cannot be loaded ({type(error).__name__}: {first_line(error)}): check "
        f"its config.json, or fetch the model again{other}"
    )


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
    stated = read_config(path)
    shape = model_shape(stated)
    refuse_quantised(shape)
    device = torch.device(device)
    try:
        config = class_config(stated | {"initializer_range": STANDARD_DEVIATION})
    except Exception as error:  # as above
        raise not_loadable(path, error) from error
    forked = [device] if device.type == "cuda" else []  # the CPU's state always is
    try:
        with torch.random.fork_rng(forked), device:
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(
                config,
                dtype=getattr(torch, shape.dtype if dtype == "auto" else dtype),
                attn_implementation=attention,
            )
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"{device} is too small for the {format_bytes(shape.weight_bytes)} of {path}: "
            "take a smaller model or a larger device"
        ) from None
    return model.eval()


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a folder once `read_folder` has passed it; InputError if none works."""
    read_folder(directory)  # transformers reads config.json for a tokenizer as well
    tokenizer_traits(directory)  # one that takes all time or memory takes it at loading already
    return _tokenizer_of(directory)


def tokenizer_traits(directory: Path) -> dict[str, Any]:
    """What the users of a folder's tokenizer see, as `traits` says; InputError if none works."""
    found = traits(partial(_tokenizer_of, directory))
    if reason := found.get("refusal"):
        raise InputError(
            f"the tokenizer of {directory} cannot be loaded or used, or its config.json cannot be "
            f"read ({reason}): add the tokenizer files that belong to it, or fetch it again"
        )
    return found


def _tokenizer_of(directory: Path) -> Tokenizer:
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(directory, **TOKENIZERS)
    if tokenizer.is_fast and isinstance(tokenizer.backend_tokenizer.model, BPE):
        tokenizer.backend_tokenizer.model.dropout = None  # no two calls would give the same tokens
    return tokenizer


def end_tokens(model: PreTrainedModel, of_tokenizer: int | None) -> set[int]:
    """The tokens that end a text: those that the model's files state, and its tokenizer's.

    Raises InputError for a statement that is no token, nor a list of tokens.
    """
    config = model.generation_config
    stated = config.eos_token_id if config else None
    listed = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if not all(isinstance(token, int) for token in listed):
        raise InputError(
            f"eos_token_id is {stated!r:.60} in the model's generation_config.json: a token's "
            "number, or a list of such, is needed; mend that file"
        )
    return {*listed, *([] if of_tokenizer is None else [of_tokenizer])}


def check_tokens(token_ids: Tensor, config: dict[str, Any]) -> None:
    """InputError if `(n, T)` sequences do not fit the model of a parsed config.json."""
    check_positions(token_ids.shape[1], config, "--sequence-length")
    largest, vocabulary = int(token_ids.max()), limits_of(config).vocab_size
    if largest >= vocabulary:
        raise InputError(
            f"the tokenizer gave token {largest}, and the model's vocabulary has only "
            f"{vocabulary}: put the tokenizer that belongs to the model in its folder"
        )


def resolve_device(name: str) -> torch.device:
    """The device that a name means; InputError if this machine lacks it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device {name} is unknown: use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index is not None):
        raise InputError(f"--device {name} is not supported: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"--device {name}: PyTorch sees {torch.cuda.device_count()} GPUs here; use "
            "--device cpu, or install a CUDA build of torch and a driver"
        )
    return device
