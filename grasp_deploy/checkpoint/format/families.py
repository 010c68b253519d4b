"""The supported model families, one row each: where their decoder layers differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grasp_deploy.errors import InputError


@dataclass(frozen=True)
class Family:
    """Defaults of a family where its config.json is silent, and its biases and norms.

    `qkv_bias` and `o_bias` are a constant, or the name of the config key that decides.
    """

    model_type: str
    stem: str
    qkv_bias: bool | str
    o_bias: bool | str
    mlp_bias: bool | str
    qk_norm: bool
    default_head_dim: int | None  # None: hidden_size / num_attention_heads
    default_key_value_heads: int | None  # None: as many as query heads

    @property
    def architecture(self) -> str:
        """Class name of the dense model, as `architectures` in config.json spells it."""
        return f"{self.stem}ForCausalLM"

    @property
    def pruned_model_type(self) -> str:
        return f"grasp_{self.model_type}"

    @property
    def pruned_architecture(self) -> str:
        return f"Grasp{self.stem}ForCausalLM"


FAMILIES = (
    Family("llama", "Llama", "attention_bias", "attention_bias", "mlp_bias", False, None, None),
    Family("mistral", "Mistral", False, False, False, False, None, 8),
    Family("qwen2", "Qwen2", True, False, False, False, None, 32),
    Family("qwen3", "Qwen3", "attention_bias", "attention_bias", False, True, 128, 32),
)


def family_of(config: dict[str, Any]) -> tuple[Family, bool]:
    """The family of a parsed config.json, and whether it is pruned; InputError if unsupported."""
    model_type = config.get("model_type", "")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list):
        raise InputError(
            f"config.json gives architectures as {architectures!r} where a list belongs: "
            "fetch the model again"
        )
    for family in FAMILIES:
        for pruned in (False, True):
            expected_type = family.pruned_model_type if pruned else family.model_type
            expected_class = family.pruned_architecture if pruned else family.architecture
            if model_type == expected_type and (
                not architectures or expected_class in architectures
            ):
                _refuse_quantised(config)
                _refuse_ministral(family, pruned, config)
                _refuse_what_is_not_served(family, config)
                return family, pruned
    supported = ", ".join(family.architecture for family in FAMILIES)
    name = architectures[0] if architectures else model_type or "unnamed"
    raise InputError(
        f"the architecture {name} (model_type {model_type or 'missing'}) is not supported: "
        f"take a model of one of these: {supported}"
    )


def _refuse_quantised(config: dict[str, Any]) -> None:
    quantization = config.get("quantization_config")
    if quantization:
        stated = isinstance(quantization, dict) and quantization.get("quant_method")
        method = stated or "an unnamed method"
        raise InputError(
            f"the model is quantised ({method}), and gates are learnt and cut on plain weights: "
            "compress the unquantised model, then quantise the result"
        )


def _refuse_what_is_not_served(family: Family, config: dict[str, Any]) -> None:
    """Refuse, before the work, what transformers loads or ignores and vLLM refuses."""
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise InputError(
            f"the activation {activation} (hidden_act) is not supported, since vLLM serves these "
            "models with silu alone: take a model with silu"
        )
    layer_types = config.get("layer_types")
    slides = isinstance(layer_types, list) and "sliding_attention" in layer_types
    if family.model_type == "llama" and slides:
        raise InputError(
            "a Llama whose config.json has sliding layer_types is not supported: take a Llama "
            "without them, a Mistral or a Qwen2"
        )


def _refuse_ministral(family: Family, pruned: bool, config: dict[str, Any]) -> None:
    """Refuse a Mistral whose config names its sliding layers: transformers builds another model."""
    if family.model_type == "mistral" and not pruned and config.get("layer_types"):
        raise InputError(
            "the architecture Ministral (a Mistral whose config.json has layer_types) is not "
            "supported: take a Llama, a Mistral without it, a Qwen2 or a Qwen3"
        )
