"""The supported model families, one row each: where their decoder layers differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed

REMEDY = "fetch the model again"


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


# Keys of a config.json that name another model, or that change it for one of its readers alone:
# what each is read as, and the values that change nothing.
FOREIGN_KEYS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "transformers_weights": ("transformers loads the weight file that it names", (None,)),
    "configuration_files": ("transformers reads the config file that it names", (None,)),
    "speculators_config": ("vLLM serves the model that it names", (None,)),
    "compression_config": ("vLLM alone reads it as a quantisation", (None, {})),
    **dict.fromkeys(
        ("text_config", "text_encoder", "decoder", "generator"),
        ("vLLM takes the model's sizes from it", (None, {})),
    ),
    "is_encoder_decoder": ("vLLM looks for an encoder then", (None, False)),
    "is_causal": ("vLLM alone attends to later tokens then", (None, True)),
    "logit_scale": ("vLLM alone multiplies the logits by it", (None, 1.0)),
    **dict.fromkeys(
        ("bias", "qkv_bias", "qk_norm", "ada_rms_norm_t_cond"),
        ("vLLM alone builds other layers then", (None, False)),
    ),
    "llama_4_scaling": ("vLLM alone scales queries by it", (None, {})),
    "attention_chunk_size": ("vLLM alone attends in chunks then", (None,)),
    "target_layer_count": ("vLLM alone counts the layers from it", (None, 0)),
}


class Kind(Struct):
    """The keys of a config.json that decide if a model is supported."""

    model_type: str = "missing"
    architectures: list[str] | None = None
    hidden_act: str = "silu"
    layer_types: list[str] | None = None


def family_of(config: dict[str, Any]) -> tuple[Family, bool]:
    """The family of a parsed config.json, and if it is pruned; InputError if unsupported."""
    kind = typed(config, Kind, "config.json", REMEDY)
    pruned = kind.model_type.startswith("grasp_")
    for family in FAMILIES:
        expected = family.pruned_architecture if pruned else family.architecture
        if kind.model_type.removeprefix("grasp_") == family.model_type and (
            set(kind.architectures or [expected]) == {expected}  # vLLM takes the first of several
        ):
            _refuse_what_is_not_served(family, pruned, kind)
            _refuse_foreign_keys(config)
            return family, pruned
    name = kind.architectures[0] if kind.architectures else "unnamed"
    raise InputError(
        f"the architecture {name} (model_type {kind.model_type}) is not supported: "
        f"take a model of one of these: {', '.join(family.architecture for family in FAMILIES)}"
    )


def _refuse_foreign_keys(config: dict[str, Any]) -> None:
    for key, (effect, neutral) in FOREIGN_KEYS.items():
        if config.get(key) not in neutral:
            raise InputError(
                f"config.json says {key} = {config[key]!r:.40}, and {effect}, so two programs "
                "would see two models: take the key out of config.json, or take another model"
            )


def _refuse_what_is_not_served(family: Family, pruned: bool, kind: Kind) -> None:
    """Refuse, before the work, what cannot be cut, or what transformers loads and vLLM does not."""
    if kind.hidden_act != "silu":
        raise InputError(
            f"the activation {kind.hidden_act} (hidden_act) is not supported, since vLLM serves "
            "these models with silu alone: take a model with silu"
        )
    if family.model_type == "llama" and "sliding_attention" in (kind.layer_types or []):
        raise InputError(
            "a Llama whose config.json has sliding layer_types is not supported: take a Llama "
            "without them, a Mistral or a Qwen2"
        )
    if family.model_type == "mistral" and not pruned and kind.layer_types:
        raise InputError(  # transformers builds another model of it
            "the architecture Ministral (a Mistral whose config.json has layer_types) is not "
            "supported: take a Llama, a Mistral without it, a Qwen2 or a Qwen3"
        )
