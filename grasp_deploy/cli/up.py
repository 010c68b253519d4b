"""What `up` asks beside compressing, verifying and serving: may it, and is it done already?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.compression.prepare import prepare
from grasp_deploy.compression.provenance import is_result_of
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.engine.flags import read_flags
from grasp_deploy.engine.serve import HOST, PORT, check_port
from grasp_deploy.engine.vllm_process import installed_platform
from grasp_deploy.errors import InputError


def check_before_compressing(config: CompressConfig, vllm_arguments: Sequence[str]) -> None:
    """InputError for what vLLM would refuse after the work: its absence, a port, a size."""
    installed_platform()
    flags = read_flags(vllm_arguments)
    if flags.uds is None:
        check_port(flags.host or HOST, flags.port or PORT)
    size = flags.tensor_parallel_size
    if any(multiple % size for multiple in config.effective_multiples):
        raise InputError(
            f"vLLM is to share the model among {size} workers, and layers only divide by that "
            f"if they are made to: add --tensor-parallel {size} before the --"
        )


def default_output(config: CompressConfig) -> Path:
    """A folder in the working directory, named after the model and its budget."""
    model = Path(config.model).resolve().name if Path(config.model).is_dir() else config.model
    name = next(n for n in ("keep", "weights", "kv_per_token") if getattr(config, n) is not None)
    return Path(re.sub(r"[^\w.-]+", "-", f"{model}-{name}-{getattr(config, name)}"))


def is_done(config: CompressConfig, output: Path) -> bool:
    """Whether the output holds what this config would make: files, options, seed and release."""
    if not (output / PLAN_FILE).is_file():
        return False
    try:
        plan = load_plan(output / PLAN_FILE)
    except InputError:  # damaged or of another release: not what this config would make
        return False
    return is_result_of(plan, prepare(config))
