"""Plugin for vLLM: the entry point of the group `vllm.general_plugins` names `register`."""

from grasp_deploy.checkpoint.format.families import FAMILIES, register_configs


def register() -> None:
    """Register the model classes of pruned checkpoints with vLLM.

    vLLM calls this in each of its processes, in some of them twice. The classes are named and not
    imported: an import would set up the device before vLLM has forked its workers.
    """
    import torch
    from vllm import ModelRegistry
    from vllm.config import model as model_config
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    # vLLM's attention uses AMX registers and relies on oneDNN to have requested them from Linux.
    # oneDNN does not where all weights are small: the worker would die of an illegal instruction.
    torch.cpu._init_amx()
    register_configs()  # vLLM reads config.json with transformers' AutoConfig
    unstable = getattr(model_config, "_FLOAT16_NOT_SUPPORTED_MODELS", {})
    known = ModelRegistry.get_supported_archs()
    for family in FAMILIES:
        if family.model_type in unstable:
            unstable[family.pruned_model_type] = unstable[family.model_type]
        name = family.pruned_architecture
        if family.architecture in MODELS_CONFIG_MAP:
            MODELS_CONFIG_MAP[name] = MODELS_CONFIG_MAP[family.architecture]
        if name not in known:
            module = "hybrid" if family.is_hybrid else "models"
            ModelRegistry.register_model(name, f"grasp_deploy.vllm_plugin.{module}:{name}")
