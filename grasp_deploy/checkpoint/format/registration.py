"""Registration of pruned checkpoints with transformers and PEFT."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from grasp_deploy.checkpoint.format.families import FAMILIES

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

PEFT_MODULE = "peft.utils.constants"


def register() -> None:
    """Let transformers' Auto classes load pruned checkpoints without remote code.

    Imports transformers and torch. PEFT's tables of default modules are filled too if PEFT was
    imported before. May be called any number of times.
    """
    from transformers import AutoModel, AutoModelForCausalLM

    from grasp_deploy.checkpoint.format import modeling_grasp

    for family, config in zip(FAMILIES, register_configs(), strict=True):
        backbone = getattr(modeling_grasp, f"Grasp{family.stem}Model")
        with_head = getattr(modeling_grasp, family.pruned_architecture)
        AutoModel.register(config, backbone, exist_ok=True)
        AutoModelForCausalLM.register(config, with_head, exist_ok=True)
    if PEFT_MODULE in sys.modules:
        _register_in_peft()


def register_configs() -> list[type[PreTrainedConfig]]:
    """Register the classes of config.json alone, in the order of the families; returns them."""
    from transformers import AutoConfig

    from grasp_deploy.checkpoint.format import configuration_grasp

    configs = [getattr(configuration_grasp, f"Grasp{family.stem}Config") for family in FAMILIES]
    for config in configs:
        AutoConfig.register(config.model_type, config, exist_ok=True)
    return configs


def _register_in_peft() -> None:
    """Give the pruned families the default modules of their dense ones, for every adapter."""
    for name, modules_of in vars(sys.modules[PEFT_MODULE]).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_") and isinstance(modules_of, dict):
            for family in FAMILIES:
                if family.model_type in modules_of:
                    modules_of[family.pruned_model_type] = modules_of[family.model_type]
