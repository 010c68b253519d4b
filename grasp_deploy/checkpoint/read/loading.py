"""Loading models and tokenizers, with one clear line for what stands in the way."""

import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    TokenizersBackend,
)
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as transformers_logging

from grasp_deploy.checkpoint.cpu import FASTER, bfloat16_rate
from grasp_deploy.checkpoint.format.families import register
from grasp_deploy.checkpoint.format.shapes import DTYPES, limits_of, model_shape, read_config
from grasp_deploy.checkpoint.limits import check_positions
from grasp_deploy.checkpoint.read.source import resolve_model
from grasp_deploy.checkpoint.read.validate import read_folder, refuse_quantised
from grasp_deploy.data.tokenizing import readable_failures, traits
from grasp_deploy.errors import InputError, first_line, is_out_of_memory

logger = logging.getLogger(__name__)
# Keys that transformers reads beside the fields of a config's class, unless they are null.
ALSO_DECLARED = {
    *("torch_dtype", "rope_theta", "rope_scaling", "partial_rotary_factor", "head_dim"),
    *("original_max_position_embeddings", "per_layer_config", "quantization_config"),
    *("rope_local_base_freq", "sliding_window_pattern"),
}
# Never code nor Mistral's own format: `engine.flags.FORMAT` tells vLLM the same.
TOKENIZERS = {"local_files_only": True, "trust_remote_code": False, "mistral_format": False}
ATTENTION = "sdpa"  # transformers' name of torch's own kernels
STANDARD_DEVIATION = 0.02  # of random weights: outputs stay finite in float16, however deep
register()


def load(model: str | Path, *, device: str = "auto", dtype: str = "auto") -> PreTrainedModel:
    """Load a checkpoint or a dense model of a supported family, ready to evaluate.

    `model` is a folder or a hub id; `dtype` "auto" is as in `wanted_dtype`. Raises InputError if
    files are missing or damaged, or the device is not there.
    """
    if dtype not in ("auto", *DTYPES):
        raise InputError(f"--dtype {dtype} is unknown: use auto, {', '.join(DTYPES)}")
    directory = resolve_model(str(model)).directory
    return load_checked(directory, resolve_device(device), dtype)


def load_checked(directory: Path, device: torch.device, dtype: str) -> PreTrainedModel:
    """Check a folder with `read_folder`, then load it in eval mode, straight onto the device."""
    stored = read_folder(directory)
    transformers_logging.disable_progress_bar()  # noise: many models are loaded
    wanted = wanted_dtype(stored.shape.dtype, device, dtype)
    logger.info("loading %s onto %s in %s", directory, device, wanted)
    with building(directory), device:
        model = AutoModelForCausalLM.from_pretrained(
            directory,
            config=class_config(stored.config),
            dtype=wanted,
            attn_implementation=ATTENTION,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,  # and never asked for on stdin
        )
    model.config.return_dict = True  # outputs are read by name, whatever the file asks for
    return model.eval()


def with_weights(directory: Path, state: dict[str, Tensor]) -> nn.Module:
    """The float32 model that a folder's config.json describes, with these weights; in eval mode.

    Raises InputError if transformers cannot build a model from that config.json.
    """
    with building(directory):
        model = model_of(read_config(directory), torch.float32)
        tied = {"lm_head.weight": state["model.embed_tokens.weight"]}  # absent where it is tied
        model.load_state_dict({**tied, **_joined_experts(state)})
    return model


def _joined_experts(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict for transformers' modules, which stack the experts of a layer in one tensor."""
    joined, apart = {}, defaultdict[str, list[Tensor]](list)
    for name, tensor in state.items():
        if ".mlp.experts." in name:
            *experts, _number, matrix, _ = name.split(".")
            apart[".".join([*experts, matrix])].append(tensor)  # in the order of experts
        else:
            joined[name] = tensor
    for name, gates in apart.items():
        if name.endswith("gate_proj"):
            both = zip(gates, apart[name.replace("gate_proj", "up_proj")], strict=True)
            joined[name.replace("gate_proj", "gate_up_proj")] = torch.stack([*map(torch.cat, both)])
        elif name.endswith("down_proj"):
            joined[name] = torch.stack(gates)
    return joined


def random_model(
    path: Path, device: torch.device | str, dtype: str = "auto", *, seed: int = 0
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
    forked = [device] if device.type == "cuda" else []  # the CPU's state is forked anyway
    with building(path), torch.random.fork_rng(forked), device:
        torch.manual_seed(seed)
        wanted = getattr(torch, shape.dtype if dtype == "auto" else dtype)
        return model_of(stated | {"initializer_range": STANDARD_DEVIATION}, wanted)


def model_of(stated: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    """The model of a parsed config.json as transformers initialises it, in eval mode."""
    config = class_config(stated)
    config.return_dict = True
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION)
    return model.eval()


def class_config(stated: dict[str, Any]) -> PreTrainedConfig:
    """Transformers' config from those keys of a parsed config.json that its class declares.

    Any other key would become an attribute too. It could name a file or a kernel to load, or
    replace a method.
    """
    declared = {field.name for field in fields(CONFIG_MAPPING[stated["model_type"]])}
    declared |= {key for key in ALSO_DECLARED if stated.get(key) is not None}
    kept = {key: value for key, value in stated.items() if key in declared}
    return AutoConfig.for_model(stated["model_type"], **kept)


@contextmanager
def building(path: Path) -> Iterator[None]:
    """Turn any exception but a lack of memory into an InputError that blames the config.json."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise InputError(
            f"{path} cannot be loaded ({type(error).__name__}: {first_line(error)}): check its "
            "config.json, or fetch the model again"
        ) from error


def wanted_dtype(stated: str, device: torch.device, dtype: str) -> torch.dtype:
    """The dtype that `dtype` asks for; "auto" is that of the weights, as `stated`.

    On a CPU it is float32 instead, unless that is bfloat16 and this machine multiplies it faster.
    """
    own: torch.dtype = getattr(torch, stated if dtype == "auto" else dtype)
    is_fast = device.type != "cpu" or (own == torch.bfloat16 and bfloat16_rate() > FASTER)
    return own if dtype != "auto" or is_fast else torch.float32


def load_tokenizer(directory: Path) -> Tokenizer:
    """Check a folder with `read_folder`, then load its tokenizer; InputError if none works."""
    family = read_folder(directory).shape.family  # transformers reads config.json here as well
    tokenizer: Any = tried_tokenizer(directory)[0]
    tokenizer.needs_first_token = family.needs_first_token
    return tokenizer


def tried_tokenizer(directory: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer of a folder, and its `traits`; InputError if it cannot be loaded or used."""
    with readable_failures(f"the tokenizer of {directory} cannot be loaded or used"):
        with building(directory):
            config = AutoConfig.from_pretrained(directory, **TOKENIZERS)
        tokenizer = AutoTokenizer.from_pretrained(directory, config=config, **TOKENIZERS)
        if _loses_bytes(tokenizer, directory):
            tokenizer = TokenizersBackend.from_pretrained(directory, local_files_only=True)
        if tokenizer.is_fast and isinstance(tokenizer.backend_tokenizer.model, BPE):
            tokenizer.backend_tokenizer.model.dropout = None  # each call gives the same tokens
        return tokenizer, traits(tokenizer)


def _loses_bytes(tokenizer: Tokenizer, directory: Path) -> bool:
    """True where the class that transformers chose has put SentencePiece's rules over byte-level's.

    So the Llamas of DeepSeek lose all spaces; transformers mends these by their name on the hub.
    """
    path = directory / "tokenizer.json"
    if not (tokenizer.is_fast and path.is_file()):
        return False
    chosen = str(tokenizer.backend_tokenizer.decoder)
    return "ByteLevel" not in chosen and "ByteLevel" in str(Backend.from_file(str(path)).decoder)


def end_tokens(model: PreTrainedModel, of_tokenizer: int | None) -> set[int]:
    """The tokens that end a text: those that the model's files state, and its tokenizer's.

    Raises InputError if the stated value is neither a token id nor a list of token ids.
    """
    stated = model.generation_config.eos_token_id if model.generation_config else None
    listed = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if not all(isinstance(token, int) for token in listed):
        raise InputError(
            f"eos_token_id is {stated!r:.60} in the model's generation_config.json: a token's "
            "number, or a list of such, is needed; mend that file"
        )
    return {*listed, *([] if of_tokenizer is None else [of_tokenizer])}


def check_tokens(token_ids: Tensor, config: dict[str, Any]) -> None:
    """Raise InputError if `(n, T)` sequences do not fit the model of a parsed config.json."""
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
            f"--device {name} is beyond what PyTorch sees here (GPUs: {torch.cuda.device_count()}"
            "); use --device cpu, or install a CUDA build of torch and a driver"
        )
    return device
