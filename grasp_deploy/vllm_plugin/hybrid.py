"""Pruned Qwen3.5 in vLLM. A file of its own, since vLLM's Qwen3.5 imports torchvision."""

from unittest.mock import patch

from vllm.config import VllmConfig
from vllm.model_executor.models import qwen3_5

from grasp_deploy.vllm_plugin.models import narrowed


class GraspQwen3_5ForCausalLM(qwen3_5.Qwen3_5ForCausalLM):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        own = narrowed(qwen3_5.Qwen3_5DecoderLayer)
        with patch.object(qwen3_5, "Qwen3_5DecoderLayer", own):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
