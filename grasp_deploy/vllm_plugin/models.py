"""vLLM's own models with every decoder layer built to the width that the checkpoint gives it.

Attention, fused projections, weight loading, LoRA, quantisation, pipeline and tensor parallelism
and compilation are vLLM's. What is new is the config that a layer is built from.
"""

import copy

from torch import nn
from transformers import PreTrainedConfig
from vllm.config import CacheConfig, VllmConfig
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralDecoderLayer, MistralForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3DecoderLayer, Qwen3Model
from vllm.model_executor.models.utils import extract_layer_index


def layer_config(config: PreTrainedConfig, prefix: str) -> PreTrainedConfig:
    """The config of the layer that a module prefix such as "model.layers.7" names."""
    return config.per_layer_config[extract_layer_index(prefix)]


class GraspLlamaDecoderLayer(LlamaDecoderLayer):
    """A Llama layer of its own width."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = layer_config(vllm_config.model_config.hf_config, prefix)
        super().__init__(vllm_config, prefix, config=config)


class GraspLlamaForCausalLM(LlamaForCausalLM):
    """A pruned Llama."""

    def __init__(
        self,
        *,
        vllm_config: VllmConfig,
        prefix: str = "",
        layer_type: type[nn.Module] = GraspLlamaDecoderLayer,
    ) -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)


class GraspMistralDecoderLayer(MistralDecoderLayer):
    """A Mistral layer of its own width."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = layer_config(vllm_config.model_config.hf_config, prefix)
        super().__init__(vllm_config, prefix, config=config)


class GraspMistralForCausalLM(MistralForCausalLM):
    """A pruned Mistral."""

    def __init__(
        self,
        *,
        vllm_config: VllmConfig,
        prefix: str = "",
        layer_type: type[nn.Module] = GraspMistralDecoderLayer,
    ) -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)


class GraspQwen2DecoderLayer(LlamaDecoderLayer):
    """A Qwen2 layer of its own width, which is a Llama layer with biases on q, k and v.

    vLLM's Qwen2 layer takes `hidden_size / num_attention_heads` for the head size, so it cannot
    have fewer heads; its Llama layer asks the config.
    """

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = copy.copy(layer_config(vllm_config.model_config.hf_config, prefix))
        config.qkv_bias = True
        super().__init__(vllm_config, prefix, config=config)


class GraspQwen2ForCausalLM(LlamaForCausalLM):
    """A pruned Qwen2 or Qwen2.5."""

    def __init__(
        self,
        *,
        vllm_config: VllmConfig,
        prefix: str = "",
        layer_type: type[nn.Module] = GraspQwen2DecoderLayer,
    ) -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)


class GraspQwen3DecoderLayer(Qwen3DecoderLayer):
    """A Qwen3 layer of its own width."""

    def __init__(
        self,
        config: PreTrainedConfig,
        cache_config: CacheConfig | None = None,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        config = layer_config(config, prefix)
        super().__init__(config, cache_config, quant_config, prefix)
        if config.attention_bias:  # vLLM's layer would drop the bias of o_proj without a word
            self.self_attn.o_proj = RowParallelLinear(
                config.num_attention_heads * config.head_dim,
                config.hidden_size,
                bias=True,
                quant_config=quant_config,
                prefix=f"{prefix}.self_attn.o_proj",
            )


class GraspQwen3Model(Qwen3Model):
    """The backbone of a pruned Qwen3."""

    decoder_layer_type = GraspQwen3DecoderLayer


class GraspQwen3ForCausalLM(LlamaForCausalLM):
    """A pruned Qwen3; vLLM's Qwen3 head is its Llama head, but only that one lets us choose."""

    def _init_model(
        self,
        vllm_config: VllmConfig,
        prefix: str = "",
        layer_type: type[nn.Module] = GraspQwen3DecoderLayer,
    ) -> nn.Module:
        return GraspQwen3Model(vllm_config=vllm_config, prefix=prefix)
