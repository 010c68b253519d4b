"""Checks before vLLM is started for a measurement."""

from __future__ import annotations

import os
import shutil

from grasp_deploy.checkpoint.limits import Platform
from grasp_deploy.engine.vllm_process import installed_platform
from grasp_deploy.errors import InputError


def vllm_platform(device: str, enforce_eager: bool) -> Platform:
    """Platform of the installed vLLM.

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
    if platform == "cpu" and not enforce_eager:
        _check_compiler()
    return platform


def _check_compiler() -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise InputError(
            f"vLLM compiles the model with {compiler}, and there is none here: install it, or give "
            "--enforce-eager to measure without compilation"
        )
