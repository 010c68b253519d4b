"""Structured pruning for Llama- and Qwen-style language models, served by vLLM.

The public names load on first use, so that importing the package costs nothing. After `register()`
transformers loads pruned checkpoints by `from_pretrained` without remote code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from grasp_deploy.version import __version__ as __version__

if TYPE_CHECKING:
    from grasp_deploy.checkpoint.format.families import register as register
    from grasp_deploy.checkpoint.plan import load_plan as load_plan
    from grasp_deploy.checkpoint.read.loading import load as load
    from grasp_deploy.checkpoint.write.export import export as export
    from grasp_deploy.compression.compress import compress as compress
    from grasp_deploy.config.compress_config import CompressConfig as CompressConfig

_PUBLIC = {
    "CompressConfig": "grasp_deploy.config.compress_config",
    "compress": "grasp_deploy.compression.compress",
    "export": "grasp_deploy.checkpoint.write.export",
    "load": "grasp_deploy.checkpoint.read.loading",
    "load_plan": "grasp_deploy.checkpoint.plan",
    "register": "grasp_deploy.checkpoint.format.families",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
