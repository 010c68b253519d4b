"""The installed vLLM, and the environment and modules to start it with."""

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grasp_deploy.checkpoint.limits import Platform, installed_platform
from grasp_deploy.errors import InputError

BINDING_VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"
CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"  # in GiB; to vLLM it counts more than any argument


def vllm_platform(device: str, enforce_eager: bool) -> Platform:
    """Platform of the installed vLLM, for a measurement.

    Raises InputError if none is installed, if it cannot use `device`, or if it would compile the
    model (on a CPU without `enforce_eager`) without a compiler.
    """
    try:
        platform = installed_platform()
    except InputError as error:
        raise InputError(f"{error}; or give --engine transformers") from None
    if device not in ("auto", platform):
        raise InputError(
            f"--device {device}: the installed vLLM computes on {platform} only; leave "
            "--device out, or give --engine transformers"
        )
    compiler = os.environ.get("CXX", "g++")
    if platform == "cpu" and not enforce_eager and shutil.which(compiler) is None:
        raise InputError(
            f"vLLM compiles the model with {compiler}, and there is none here: install it, or give "
            "--enforce-eager to measure without compilation"
        )
    return platform


def server_module() -> list[str]:
    """The module that serves over HTTP, with the arguments before the model."""
    with suppress(PackageNotFoundError):
        version("vllm")
        return ["vllm.entrypoints.cli.main", "serve"]
    # The command `vllm` asks for its own version under that name, so in the package vllm-cpu
    # it dies with PackageNotFoundError. This module is the same server.
    return ["vllm.entrypoints.openai.api_server", "--model"]


def answer_to_its_name(folder: Path) -> None:
    """Let this process find the installed vLLM's release under "vllm", if it is called vllm-cpu.

    Libraries that drive vLLM ask for that release and fail without it. An empty `folder` gets the
    metadata that they look for, and goes onto the path.
    """
    with suppress(PackageNotFoundError):
        version("vllm")
        return
    release = f"{version('vllm-cpu')}+cpu"
    metadata = folder / f"vllm-{release}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")
    sys.path.append(str(folder))


def engine_environment(platform: Platform, workers: int, *, sized: bool = True) -> dict[str, str]:
    """The environment to start vLLM in: this process's, with each CPU worker given cores.

    With `sized` the arguments size the KV cache, and the variable that overrides them is removed.
    """
    environment = dict(os.environ)
    if sized:
        environment.pop(CACHE_VARIABLE, None)
    if platform == "cpu" and environment.get(BINDING_VARIABLE, "auto") == "auto":
        nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
        binding = thread_binding(workers, sorted(os.sched_getaffinity(0)), max(1, nodes))
        if binding != "auto":
            environment[BINDING_VARIABLE] = binding
    return environment


def vllm_child_environment() -> dict[str, str]:
    """The environment of a child that runs vLLM's engine in its own process.

    The engine starts three times as fast there, with the same kernels.
    """
    environment = engine_environment(installed_platform(), workers=1)
    return {**environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def thread_binding(workers: int, cores: Sequence[int], numa_nodes: int) -> str:
    """Cores of each worker's threads, as VLLM_CPU_OMP_THREADS_BIND spells them.

    "auto" gives each worker a NUMA node and dies if there are fewer nodes than workers; then the
    cores are dealt out evenly here, or left to the kernel if there are fewer cores than workers.
    """
    if workers <= numa_nodes:
        return "auto"
    share = len(cores) // workers
    if share == 0:
        return "nobind"
    parts = [cores[rank * share : (rank + 1) * share] for rank in range(workers)]
    return "|".join(",".join(map(str, part)) for part in parts)
