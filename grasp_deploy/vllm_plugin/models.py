"""vLLM's own models, each decoder layer built from its own config.

Attention, fused projections, weight loading, LoRA, quantisation, parallelism and compilation are
vLLM's.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from torch import nn
from transformers import PreTrainedConfig
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.models import gemma3, granite, qwen3_moe
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralDecoderLayer, MistralForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3DecoderLayer, Qwen3ForCausalLM, Qwen3Model
from vllm.model_executor.models.utils import extract_layer_index


def layer_config(config: PreTrainedConfig, prefix: str) -> PreTrainedConfig:
    """Config of the layer named by a module prefix such as "model.layers.7"."""
    return config.per_layer_config[extract_layer_index(prefix)]


class GraspLlamaForCausalLM(LlamaForCausalLM):
    layer_class: type[nn.Module] = LlamaDecoderLayer

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=self.narrow_layer)

    def narrow_layer(self, vllm_config: VllmConfig, prefix: str) -> nn.Module:
        config = layer_config(vllm_config.model_config.hf_config, prefix)
        return self.layer_class(vllm_config, prefix, config=config)


class GraspMistralForCausalLM(GraspLlamaForCausalLM, MistralForCausalLM):
    layer_class = MistralDecoderLayer


class GraspMinistral3ForCausalLM(GraspMistralForCausalLM):
    """Scales queries by position, by values that vLLM does not look for in rope_parameters."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        rope, limit = config.rope_parameters, "original_max_position_embeddings"
        config.llama_4_scaling = {"beta": rope["llama_4_scaling_beta"], limit: rope[limit]}
        super().__init__(vllm_config=vllm_config, prefix=prefix)


class GraspQwen2ForCausalLM(GraspLlamaForCausalLM):
    """A pruned Qwen2, of Llama layers with biases on q, k and v.

    vLLM's Qwen2 layer computes the head size as `hidden_size / num_attention_heads`, which is wrong
    for fewer heads. Its Llama layer reads the config.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        vllm_config.model_config.hf_config.qkv_bias = True
        super().__init__(vllm_config=vllm_config, prefix=prefix)


class GraspQwen3DecoderLayer(Qwen3DecoderLayer):
    def __init__(self, config: PreTrainedConfig, *, prefix: str = "", **kwargs: Any) -> None:
        own, index = layer_config(config, prefix), extract_layer_index(prefix)
        slides = config.layer_types[index] == "sliding_attention"
        kwargs["per_layer_sliding_window"] = config.sliding_window if slides else None
        super().__init__(own, prefix=prefix, **kwargs)
        if own.attention_bias:  # vLLM's layer drops the bias of o_proj silently
            self.self_attn.o_proj = RowParallelLinear(
                own.num_attention_heads * own.head_dim,
                own.hidden_size,
                bias=True,
                quant_config=kwargs.get("quant_config"),
                prefix=f"{prefix}.self_attn.o_proj",
            )


class GraspQwen3ForCausalLM(Qwen3ForCausalLM):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        config.max_window_layers = config.num_hidden_layers  # asserted, not read
        with patch.object(Qwen3Model, "decoder_layer_type", GraspQwen3DecoderLayer):
            super().__init__(vllm_config=vllm_config, prefix=prefix)


def with_own_config(layer_class: type[nn.Module]) -> Callable[..., nn.Module]:
    """Build layers from their own config, where the class is given that of the whole model."""

    def build(config: PreTrainedConfig, *args: Any, prefix: str, **kwargs: Any) -> nn.Module:
        return layer_class(layer_config(config, prefix), *args, prefix=prefix, **kwargs)

    return build


class GraspGraniteForCausalLM(granite.GraniteForCausalLM):
    """A pruned Granite. vLLM's takes no layer class, so the name of its own is patched."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        own = with_own_config(granite.GraniteDecoderLayer)
        with patch.object(granite, "GraniteDecoderLayer", own):
            super().__init__(vllm_config=vllm_config, prefix=prefix)


class GraspGemma3ForCausalLM(gemma3.Gemma3ForCausalLM):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        own = with_own_config(gemma3.Gemma3DecoderLayer)
        with patch.object(gemma3, "Gemma3DecoderLayer", own):
            super().__init__(vllm_config=vllm_config, prefix=prefix)


def narrowed(layer_class: type[nn.Module]) -> Callable[..., nn.Module]:
    """Build layers from their own config, where the class reads the whole vLLM config."""

    def build(vllm_config: VllmConfig, *args: Any, prefix: str, **kwargs: Any) -> nn.Module:
        narrow, model_config = copy.copy(vllm_config), copy.copy(vllm_config.model_config)
        config: Any = copy.copy(layer_config(model_config.hf_text_config, prefix))
        config.model_type = config.model_type.removeprefix("grasp_")  # some layers look at it
        model_config.hf_text_config, narrow.model_config = config, model_config
        return layer_class(narrow, *args, prefix=prefix, **kwargs)

    return build


class GraspQwen3MoeForCausalLM(qwen3_moe.Qwen3MoeForCausalLM):
    """A pruned Qwen3 with experts. vLLM's takes no backbone, so the name of its own is patched."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        if vllm_config.parallel_config.enable_eplb:
            raise ValueError(
                "layers with different numbers of experts cannot be balanced: leave --enable-eplb "
                "out"
            )
        own = narrowed(qwen3_moe.Qwen3MoeDecoderLayer)
        backbone = partial(qwen3_moe.Qwen3MoeModel, decoder_layer_type=own)
        with patch.object(qwen3_moe, "Qwen3MoeModel", backbone):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
