"""Pruned models: the stock transformers classes with every decoder layer built to its own width.

This file is part of grasp-deploy and also travels inside every checkpoint that it writes, so it
imports nothing but torch, transformers and the configuration beside it. Attention, MLP and weight
names are the stock ones; what is new is which sizes a layer is built with.

`super` is given its arguments, as in the configuration beside it.
"""

from typing import Any, ClassVar

import torch
from torch import nn
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.granite import modeling_granite as granite
from transformers.models.llama import modeling_llama as llama
from transformers.models.ministral3 import modeling_ministral3 as ministral3
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3 import modeling_qwen3 as qwen3
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3_moe

from .configuration_grasp import (
    GraspGemma3Config,
    GraspGraniteConfig,
    GraspLlamaConfig,
    GraspMinistral3Config,
    GraspMistralConfig,
    GraspQwen2Config,
    GraspQwen3_5Config,
    GraspQwen3Config,
    GraspQwen3MoeConfig,
)


def build_layer(layer_class: type[nn.Module], config: Any, layer_index: int) -> nn.Module:
    """Build one decoder layer at the width that `config.per_layer_config` gives it."""
    sizes = config.per_layer_config[layer_index]
    layer: Any = layer_class(sizes, layer_index)
    attention, mlp = getattr(layer, "self_attn", layer), layer.mlp
    built = {}  # linear attention has no units
    if attention is not layer:
        built["num_attention_heads"] = attention.o_proj.in_features / config.head_dim
        built["num_key_value_heads"] = attention.k_proj.out_features / config.head_dim
    # The stock layer keeps the config that it was given. Give it the model's own, so that what is
    # set on that one later (the attention implementation) reaches the layers.
    if isinstance(layer, qwen3_moe.Qwen3MoeDecoderLayer):
        built["num_experts"] = len(mlp.experts.down_proj)
        attention.config = mlp.experts.config = config
    else:
        built["intermediate_size"] = mlp.down_proj.in_features
        attention.config = mlp.config = config
    asked = {name: getattr(sizes, name) for name in built}
    assert built == asked, f"layer {layer_index} was built as {built}, its config says {asked}"
    assert sizes.num_attention_heads % sizes.num_key_value_heads == 0, (
        f"layer {layer_index}: {sizes.num_attention_heads} query heads cannot share "
        f"{sizes.num_key_value_heads} KV heads evenly"
    )
    return layer


class NarrowLayersMixin:
    """The backbone that all families share; a family names the class of its layers.

    The stock `__init__` builds all but the layers, which it would make at full width.
    """

    layer_class: ClassVar[type[nn.Module]]
    _auto_class: Any = "AutoModel"  # saving names the classes in `auto_map` and copies this file

    def __init__(self, config: Any) -> None:
        depth, config.num_hidden_layers = config.num_hidden_layers, 0
        try:
            super(NarrowLayersMixin, self).__init__(config)  # type: ignore[call-arg]
        finally:
            config.num_hidden_layers = depth
        self.layers = nn.ModuleList(build_layer(self.layer_class, config, i) for i in range(depth))
        self.post_init()  # type: ignore[attr-defined]

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        *,
        inputs_embeds: torch.FloatTensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Run the stock forward; vLLM cannot save a graph compiled of that one, it is decorated.

        vLLM looks for these names. The cache has none here: transformers 5.24 renames it.
        """
        return super(NarrowLayersMixin, self).forward(  # type: ignore[misc]
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )


class LanguageHeadMixin:
    """Puts a family's narrow backbone under its stock language model head."""

    backbone_class: ClassVar[type[PreTrainedModel]]
    _auto_class: Any = "AutoModelForCausalLM"

    def __init__(self, config: Any) -> None:
        PreTrainedModel.__init__(self, config)  # type: ignore[arg-type]
        self.model = self.backbone_class(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[attr-defined]


class GraspLlamaModel(NarrowLayersMixin, llama.LlamaModel):
    config_class = GraspLlamaConfig
    layer_class = llama.LlamaDecoderLayer


class GraspLlamaForCausalLM(LanguageHeadMixin, llama.LlamaForCausalLM):
    config_class = GraspLlamaConfig
    backbone_class = GraspLlamaModel


class GraspMistralModel(NarrowLayersMixin, mistral.MistralModel):
    config_class = GraspMistralConfig
    layer_class = mistral.MistralDecoderLayer


class GraspMistralForCausalLM(LanguageHeadMixin, mistral.MistralForCausalLM):
    config_class = GraspMistralConfig
    backbone_class = GraspMistralModel


class GraspMinistral3Model(NarrowLayersMixin, ministral3.Ministral3Model):
    config_class = GraspMinistral3Config
    layer_class = ministral3.Ministral3DecoderLayer


class GraspMinistral3ForCausalLM(LanguageHeadMixin, ministral3.Ministral3ForCausalLM):
    config_class = GraspMinistral3Config
    backbone_class = GraspMinistral3Model


class GraspQwen2Model(NarrowLayersMixin, qwen2.Qwen2Model):
    config_class = GraspQwen2Config
    layer_class = qwen2.Qwen2DecoderLayer


class GraspQwen2ForCausalLM(LanguageHeadMixin, qwen2.Qwen2ForCausalLM):
    config_class = GraspQwen2Config
    backbone_class = GraspQwen2Model


class GraspQwen3Model(NarrowLayersMixin, qwen3.Qwen3Model):
    config_class = GraspQwen3Config
    layer_class = qwen3.Qwen3DecoderLayer


class GraspQwen3ForCausalLM(LanguageHeadMixin, qwen3.Qwen3ForCausalLM):
    config_class = GraspQwen3Config
    backbone_class = GraspQwen3Model


class GraspGraniteModel(NarrowLayersMixin, granite.GraniteModel):
    config_class = GraspGraniteConfig
    layer_class = granite.GraniteDecoderLayer


class GraspGraniteForCausalLM(LanguageHeadMixin, granite.GraniteForCausalLM):
    config_class = GraspGraniteConfig
    backbone_class = GraspGraniteModel


class GraspGemma3Model(NarrowLayersMixin, gemma3.Gemma3TextModel):
    config_class = GraspGemma3Config
    layer_class = gemma3.Gemma3DecoderLayer


class GraspGemma3ForCausalLM(LanguageHeadMixin, gemma3.Gemma3ForCausalLM):
    config_class = GraspGemma3Config
    backbone_class = GraspGemma3Model


class GraspQwen3MoeModel(NarrowLayersMixin, qwen3_moe.Qwen3MoeModel):
    config_class = GraspQwen3MoeConfig
    layer_class = qwen3_moe.Qwen3MoeDecoderLayer


class GraspQwen3MoeForCausalLM(LanguageHeadMixin, qwen3_moe.Qwen3MoeForCausalLM):
    config_class = GraspQwen3MoeConfig
    backbone_class = GraspQwen3MoeModel

    def __init__(self, config: Any) -> None:
        super(GraspQwen3MoeForCausalLM, self).__init__(config)
        self.router_aux_loss_coef = config.router_aux_loss_coef
        self.num_experts = config.num_experts
        self.num_experts_per_tok = config.num_experts_per_tok


class GraspQwen3_5Model(NarrowLayersMixin, qwen3_5.Qwen3_5TextModel):
    config_class = GraspQwen3_5Config
    layer_class = qwen3_5.Qwen3_5DecoderLayer


class GraspQwen3_5ForCausalLM(LanguageHeadMixin, qwen3_5.Qwen3_5ForCausalLM):
    config_class = GraspQwen3_5Config
    backbone_class = GraspQwen3_5Model


# Files hold a tensor for each expert, modules one for all: by the stock family's rules.
register_checkpoint_conversion_mapping(
    GraspQwen3MoeConfig.model_type, get_checkpoint_conversion_mapping("qwen3_moe"), overwrite=True
)
