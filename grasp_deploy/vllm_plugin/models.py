"""vLLM's own models, each decoder layer built from its own config.

Attention, fused projections, weight loading, LoRA, quantisation, parallelism and compilation are
vLLM's.
"""

import copy
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
from vllm.model_executor.models.qwen3 import Qwen3DecoderLayer, Qwen3Model
from vllm.model_executor.models.utils import extract_layer_index


def layer_config(config: PreTrainedConfig, prefix: str) -> PreTrainedConfig:
    """Config of the layer named by a module prefix such as "model.layers.7"."""
    return config.per_layer_config[extract_layer_index(prefix)]


class GraspLlamaDecoderLayer(LlamaDecoderLayer):
    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = layer_config(vllm_config.model_config.hf_config, prefix)
        super().__init__(vllm_config, prefix, config=config)


class GraspLlamaForCausalLM(LlamaForCausalLM):
    decoder_layer: type[nn.Module] = GraspLlamaDecoderLayer

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=self.decoder_layer)


class GraspMistralDecoderLayer(MistralDecoderLayer):
    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = layer_config(vllm_config.model_config.hf_config, prefix)
        super().__init__(vllm_config, prefix, config=config)


class GraspMistralForCausalLM(GraspLlamaForCausalLM, MistralForCausalLM):
    decoder_layer = GraspMistralDecoderLayer


class GraspMinistral3DecoderLayer(MistralDecoderLayer):
    """A layer that scales queries by position; config.json has the values in rope_parameters."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = copy.copy(layer_config(vllm_config.model_config.hf_config, prefix))
        rope, limit = config.rope_parameters, "original_max_position_embeddings"
        config.llama_4_scaling = {"beta": rope["llama_4_scaling_beta"], limit: rope[limit]}
        super().__init__(vllm_config, prefix, config=config)


class GraspMinistral3ForCausalLM(GraspMistralForCausalLM):
    decoder_layer = GraspMinistral3DecoderLayer


class GraspQwen2DecoderLayer(LlamaDecoderLayer):
    """A Qwen2 layer of its own width: a Llama layer with biases on q, k and v.

    vLLM's Qwen2 layer computes the head size as `hidden_size / num_attention_heads`, which is wrong
    for fewer heads. Its Llama layer reads the config.
    """

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = copy.copy(layer_config(vllm_config.model_config.hf_config, prefix))
        config.qkv_bias = True
        super().__init__(vllm_config, prefix, config=config)


class GraspQwen2ForCausalLM(GraspLlamaForCausalLM):
    decoder_layer = GraspQwen2DecoderLayer


class OwnConfigMixin:
    """Gives a layer its own config, where its first argument is that of the whole model."""

    def __init__(
        self, config: PreTrainedConfig, *args: Any, prefix: str = "", **kwargs: Any
    ) -> None:
        own = layer_config(config, prefix)
        super().__init__(own, *args, prefix=prefix, **kwargs)  # type: ignore[call-arg]


class GraspQwen3DecoderLayer(OwnConfigMixin, Qwen3DecoderLayer):
    def __init__(self, config: PreTrainedConfig, *, prefix: str = "", **kwargs: Any) -> None:
        slides = config.layer_types[extract_layer_index(prefix)] == "sliding_attention"
        kwargs["per_layer_sliding_window"] = config.sliding_window if slides else None
        super().__init__(config, prefix=prefix, **kwargs)
        own = layer_config(config, prefix)
        if own.attention_bias:  # vLLM's layer drops the bias of o_proj silently
            self.self_attn.o_proj = RowParallelLinear(
                own.num_attention_heads * own.head_dim,
                own.hidden_size,
                bias=True,
                quant_config=kwargs.get("quant_config"),
                prefix=f"{prefix}.self_attn.o_proj",
            )


class GraspQwen3Model(Qwen3Model):
    decoder_layer_type = GraspQwen3DecoderLayer


class GraspQwen3ForCausalLM(LlamaForCausalLM):
    """A pruned Qwen3. vLLM's Qwen3 head is its Llama head, but only that one takes a backbone."""

    def _init_model(
        self, vllm_config: VllmConfig, prefix: str = "", layer_type: type[nn.Module] | None = None
    ) -> nn.Module:
        config = vllm_config.model_config.hf_config
        config.max_window_layers = config.num_hidden_layers  # asserted, not read
        return GraspQwen3Model(vllm_config=vllm_config, prefix=prefix)


class GraspGraniteDecoderLayer(OwnConfigMixin, granite.GraniteDecoderLayer):
    pass


class GraspGraniteForCausalLM(granite.GraniteForCausalLM):
    """A pruned Granite. vLLM's takes no layer class, so the name of its own is patched."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        with patch.object(granite, "GraniteDecoderLayer", GraspGraniteDecoderLayer):
            super().__init__(vllm_config=vllm_config, prefix=prefix)


class GraspGemma3DecoderLayer(OwnConfigMixin, gemma3.Gemma3DecoderLayer):
    pass


class GraspGemma3ForCausalLM(gemma3.Gemma3ForCausalLM):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        with patch.object(gemma3, "Gemma3DecoderLayer", GraspGemma3DecoderLayer):
            super().__init__(vllm_config=vllm_config, prefix=prefix)


def narrowed(vllm_config: VllmConfig, prefix: str) -> VllmConfig:
    """A copy with the config of one layer, for layers that read sizes from the whole model's."""
    narrow, model_config = copy.copy(vllm_config), copy.copy(vllm_config.model_config)
    config: Any = copy.copy(layer_config(model_config.hf_text_config, prefix))
    config.model_type = config.model_type.removeprefix("grasp_")  # some layers look at it
    model_config.hf_text_config, narrow.model_config = config, model_config
    return narrow


class GraspQwen3MoeDecoderLayer(qwen3_moe.Qwen3MoeDecoderLayer):
    def __init__(self, vllm_config: VllmConfig, prefix: str = "", **kwargs: Any) -> None:
        super().__init__(narrowed(vllm_config, prefix), prefix, **kwargs)


class GraspQwen3MoeForCausalLM(qwen3_moe.Qwen3MoeForCausalLM):
    """A pruned Qwen3 with experts. vLLM's takes no backbone, so the name of its own is patched."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        if vllm_config.parallel_config.enable_eplb:
            raise ValueError(
                "layers with different numbers of experts cannot be balanced: leave --enable-eplb "
                "out"
            )
        narrow = partial(qwen3_moe.Qwen3MoeModel, decoder_layer_type=GraspQwen3MoeDecoderLayer)
        with patch.object(qwen3_moe, "Qwen3MoeModel", narrow):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
