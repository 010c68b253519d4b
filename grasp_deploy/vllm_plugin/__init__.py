"""vLLM's way in: the entry point of the group `vllm.general_plugins` points at `register`."""

from grasp_deploy.checkpoint.format.families import FAMILIES


def register() -> None:
    """Tell vLLM which classes serve a pruned checkpoint.

    vLLM calls this in each of its processes, in some of them twice. The model classes are named,
    not imported: importing them would set up the device before vLLM has forked its workers.
    """
    import torch
    from vllm import ModelRegistry

    from grasp_deploy.checkpoint.format.registration import register_with_transformers

    # vLLM's attention uses the AMX registers of processors that have them, and relies on oneDNN to
    # have asked Linux for them before. oneDNN sees no product of a model whose weights are all
    # small, and the worker dies of an illegal instruction. Asking twice does no harm.
    torch.cpu._init_amx()
    register_with_transformers()  # vLLM reads config.json with transformers' AutoConfig
    known = ModelRegistry.get_supported_archs()
    for family in FAMILIES:
        name = family.pruned_architecture
        if name not in known:
            ModelRegistry.register_model(name, f"grasp_deploy.vllm_plugin.models:{name}")
