"""Read those flags for vLLM's server on which our checks depend."""

import argparse
import math
from collections.abc import Sequence
from typing import NoReturn

from grasp_deploy.errors import InputError

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
# What vLLM would otherwise guess from the files of a folder: Mistral's format where there is a
# consolidated file, and embeddings instead of text where there is a modules.json.
FORMAT = {
    "config_format": "hf",
    "load_format": "safetensors",
    "tokenizer_mode": "hf",
    "runner": "generate",
}
# Each of these sets the size of the KV cache.
CACHE_SIZE_FLAGS = (
    "--kv-cache-memory-bytes",
    "--gpu-memory-utilization",
    "--num-gpu-blocks-override",
)
COMPILATION_FLAGS = ("--optimization-level", "-O", "--compilation-config", "-cc")


class ServerFlags(argparse.Namespace):
    """Values of the flags; None for an absent flag."""

    config: str | None
    hf_config_path: str | None
    model: str | None
    revision: str | None
    host: str | None
    port: int | None
    uds: str | None
    ssl_certfile: str | None
    grpc: bool
    headless: bool
    api_key: list[str]
    hf_token: list[str]
    watermark_config: list[str]
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    enforce_eager: bool
    enable_lora: bool
    trust_remote_code: bool
    sets_compilation: bool
    max_model_len: int | None  # None too where it is not a plain number
    shutdown_timeout: int | None
    tokenizer: str | None
    skip_tokenizer_init: bool
    sets_cache_size: bool
    dtype: str | None
    quantization: str | None
    convert: str | None

    @property
    def workers(self) -> int:
        """The number of processes over all copies of the model."""
        return math.prod(self.parallel_sizes)

    @property
    def parallel_sizes(self) -> tuple[int, int, int]:
        """Shares of each layer, stages of layers, and copies of the model."""
        return self.tensor_parallel_size, self.pipeline_parallel_size, self.data_parallel_size

    @property
    def secrets(self) -> list[str]:
        """Values that nothing may print or record; the watermark's holds its key."""
        return [*self.api_key, *self.hf_token, *self.watermark_config]

    def own_format(self, dtype: str | None) -> list[str]:
        """FORMAT and the weights' `dtype` as flags, without those that these flags decide."""
        wanted = {**FORMAT, "dtype": dtype if self.quantization is None else None}
        decided = {name for name in wanted if getattr(self, name) is not None}
        decided |= {"tokenizer_mode"} if self.tokenizer is not None else set()
        decided |= {"runner"} if self.convert is not None else set()
        pairs = [(name, value) for name, value in wanted.items() if name not in decided and value]
        return [part for name, value in pairs for part in (_dashed(f"--{name}"), value)]


def read_flags(vllm_arguments: Sequence[str]) -> ServerFlags:
    """Read flags in every spelling that vLLM accepts.

    Raises InputError for a value that cannot be read, a word before the first flag, a second model
    or config.json, a file of flags and an empty address. Unknown flags are left to vLLM.
    """
    if vllm_arguments and not vllm_arguments[0].startswith("-"):
        raise InputError(
            f"{vllm_arguments[0]!r:.60} is one word too many: name one model, and behind it flags "
            "for vLLM, such as -- --port 8001"
        )
    arguments = [_dashed(argument) for argument in vllm_arguments]
    try:
        flags = _parser().parse_known_args(arguments, ServerFlags())[0]
    except argparse.ArgumentError as error:
        raise InputError(f"a flag for vLLM cannot be read: {error}") from None
    if min(flags.parallel_sizes) < 1:
        raise InputError("a parallel size for vLLM is under 1: use 1 or more")
    if flags.model is not None:
        raise InputError(
            f"--model {flags.model} for vLLM names a second model: leave it out, the folder is "
            "what is checked and served"
        )
    if flags.hf_config_path is not None:
        raise InputError(
            f"--hf-config-path {flags.hf_config_path} for vLLM names a second config.json: leave "
            "it out, the folder's own is what is checked and served"
        )
    if "" in (flags.host, flags.uds):
        raise InputError(
            "--host or --uds for vLLM is empty, which means all of this machine's addresses: leave "
            "it out for 127.0.0.1, or give --host 0.0.0.0 if others are to ask"
        )
    if flags.config is not None:
        raise InputError(
            f"--config {flags.config} for vLLM hides flags from the checks: write its flags out "
            "behind the --"
        )
    return flags


def _refuse(message: str) -> NoReturn:
    raise argparse.ArgumentError(None, message)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.error = _refuse  # type: ignore[method-assign]  # which ambiguous names still come to
    plain = ("config", "hf_config_path", "model", "revision", "host", "uds", "ssl_certfile")
    for name in (*plain, "tokenizer", "convert", *FORMAT):
        parser.add_argument(_dashed(f"--{name}"))
    for name in ("--grpc", "--headless", "--skip-tokenizer-init"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--quantization", "-q")
    parser.add_argument("--port", type=int)
    parser.add_argument("--api-key", nargs="+", action="extend", default=[])
    parser.add_argument("--hf-token", nargs="*", action="extend", default=[])
    parser.add_argument("--watermark-config", action="append", default=[])
    parser.add_argument("--watermark")  # else read as a short form of the former
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
    parser.add_argument("--data-parallel-size", "-dp", type=int, default=1)
    action = argparse.BooleanOptionalAction
    parser.add_argument("--enable-expert-parallel", "-ep", action=action, default=False)
    parser.add_argument("--enforce-eager", action=action, default=False)
    parser.add_argument("--enable-lora", action=action, default=False)
    parser.add_argument("--trust-remote-code", action=action, default=False)
    parser.add_argument("--max-model-len", type=lambda t: int(t) if t.isdecimal() else None)
    parser.add_argument("--shutdown-timeout", type=int)
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument(*CACHE_SIZE_FLAGS, dest="sets_cache_size", type=bool, default=False)
    parser.add_argument(*COMPILATION_FLAGS, dest="sets_compilation", type=bool, default=False)
    return parser


def _dashed(argument: str) -> str:
    """The flag with dashes, less the field behind a dot: vLLM accepts --compilation_config.mode."""
    name, equals, value = argument.partition("=")
    if not name.startswith(("--", "-O.", "-cc.")):
        return argument
    return name.partition(".")[0].replace("_", "-") + equals + value
