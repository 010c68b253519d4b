"""Configurations of pruned checkpoints: a stock family whose layers differ in width.

This file is part of grasp-deploy and also travels inside every checkpoint that it writes, so it
imports nothing but transformers. The global sizes are the dense model's; what each layer kept
stands in `per_layer_config`, transformers' own field for layers that differ.

`super` is given its arguments: tools that compile a method again, from its source, have no class
around it.
"""

from typing import Any, ClassVar

from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.granite.configuration_granite import GraniteConfig
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.ministral3.configuration_ministral3 import Ministral3Config
from transformers.models.mistral.configuration_mistral import MistralConfig
from transformers.models.qwen2.configuration_qwen2 import Qwen2Config
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

LAYER_SIZES = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "num_experts")


class LayerSizesMixin:
    """Lets global sizes be read although layers differ, and names the code that travels along.

    transformers refuses such reads (with an error that even `getattr` with a default lets
    through) because a caller might take the global value for every layer's. Tokenizers, trainers
    and servers read these fields for what they are good for here: the widest a layer can be.
    """

    allow_global_per_layer_attribute_access: ClassVar[bool] = True
    head_dim: Any
    hidden_size: Any
    num_attention_heads: Any
    # Saving copies this file and writes `auto_map`, so that a saved model stays loadable.
    _auto_class: ClassVar[str | None] = "AutoConfig"

    def __getattribute__(self, key: str) -> Any:
        if key in LAYER_SIZES:  # past the warning that transformers would log at the first read
            return object.__getattribute__(self, key)
        return super(LayerSizesMixin, self).__getattribute__(key)

    def __post_init__(self, **kwargs: Any) -> None:
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        family = type(self).__name__.removesuffix("Config")
        kwargs["auto_map"] = {
            "AutoConfig": f"configuration_grasp.{family}Config",
            "AutoModel": f"modeling_grasp.{family}Model",
            "AutoModelForCausalLM": f"modeling_grasp.{family}ForCausalLM",
        }
        super(LayerSizesMixin, self).__post_init__(**kwargs)  # type: ignore[misc]


class GraspLlamaConfig(LayerSizesMixin, LlamaConfig):
    model_type = "grasp_llama"


class GraspMistralConfig(LayerSizesMixin, MistralConfig):
    model_type = "grasp_mistral"


class GraspMinistral3Config(LayerSizesMixin, Ministral3Config):
    model_type = "grasp_ministral3"


class GraspQwen2Config(LayerSizesMixin, Qwen2Config):
    model_type = "grasp_qwen2"

    head_dim: int | None = None  # unknown to the stock class, which divides by the number of heads


class GraspQwen3Config(LayerSizesMixin, Qwen3Config):
    model_type = "grasp_qwen3"


class GraspGraniteConfig(LayerSizesMixin, GraniteConfig):
    model_type = "grasp_granite"

    head_dim: int | None = None  # as for Qwen2


class GraspGemma3Config(LayerSizesMixin, Gemma3TextConfig):
    model_type = "grasp_gemma3_text"


class GraspQwen3MoeConfig(LayerSizesMixin, Qwen3MoeConfig):
    model_type = "grasp_qwen3_moe"
    attribute_map: ClassVar[dict[str, str]] = {}  # layers state num_experts by its own name

    head_dim: int | None = None  # as for Qwen2


class GraspQwen3_5Config(LayerSizesMixin, Qwen3_5TextConfig):
    model_type = "grasp_qwen3_5_text"
