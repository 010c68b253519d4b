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


# Keys of a config.json that name another model, or that one reader alone takes for a part of it,
# with values that change nothing. No class of these families declares any of them.
FOREIGN_KEYS: dict[str, tuple[Any, ...]] = {
    # transformers loads the files that these name.
    **dict.fromkeys(("transformers_weights", "configuration_files"), (None,)),
    # vLLM takes the model, its sizes or its kind from these.
    **dict.fromkeys(
        (
            *("speculators_config", "compression_config", "text_config", "text_encoder"),
            *("decoder", "generator", "encoder", "encoder_config", "llm_config", "language_config"),
            *(
                "thinker_config",
                "vision_config",
                "attn_config",
                "block_configs",
                "is_heterogeneous",
            ),
            *("layers_block_type", "attn_type_list", "attention_head_dim", "hidden_size_per_head"),
            *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
            *("compress_ratios", "index_topk", "multi_query", "new_decoder_architecture"),
            *("canvas_length", "embedding_size", "is_encoder_decoder", "num_kv_shared_layers"),
        ),
        (None, False, 0, {}, []),
    ),
    # vLLM computes another thing then.
    **dict.fromkeys(
        (
            *("bias", "qkv_bias", "qk_norm", "ada_rms_norm_t_cond", "use_bidirectional_attention"),
            *(
                "llama_4_scaling",
                "attention_chunk_size",
                "target_layer_count",
                "alibi",
                "rswa_window",
            ),
            *("dual_chunk_attention_config", "head_dtype", "rotary_pct", "rotary_emb_fraction"),
        ),
        (None, False, 0, {}),
    ),
    "is_causal": (None, True),
    **dict.fromkeys(("logit_scale", "partial_rotary_factor"), (None, 1)),
}
# What a family's class does not declare, and vLLM reads all the same.
FOREIGN_KEYS_OF: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {"sliding_window": (None,)},
    "mistral": dict.fromkeys(("attention_bias", "mlp_bias"), (None, False)),
}
# Positions that transformers and vLLM spread alike, and the keys that both understand.
ROPE_TYPES = (None, "default", "linear", "dynamic", "yarn", "llama3")
ROPE_KEYS = {
    *("rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "finetuned"),
    *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    *("attention_factor", "truncate", "partial_rotary_factor"),
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
            _refuse_foreign_keys(config, family)
            return family, pruned
    name = kind.architectures[0] if kind.architectures else "unnamed"
    raise InputError(
        f"the architecture {name} (model_type {kind.model_type}) is not supported: "
        f"take a model of one of these: {', '.join(family.architecture for family in FAMILIES)}"
    )


def _refuse_foreign_keys(config: dict[str, Any], family: Family) -> None:
    neutral = FOREIGN_KEYS | FOREIGN_KEYS_OF.get(family.model_type, {})
    foreign = {key: config[key] for key in neutral if config.get(key) not in neutral[key]}
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        for key, value in rope.items() if isinstance(rope, dict) else ():
            is_unlike = value not in ROPE_TYPES if key in ("rope_type", "type") else False
            is_part = key == "partial_rotary_factor" and value not in (None, 1)
            if is_unlike or is_part or (key not in ROPE_KEYS and value is not None):
                foreign[f"{name}.{key}"] = value
    for key, value in foreign.items():
        raise InputError(
            f"config.json says {key[:60]} = {value!r:.40}, which transformers and vLLM do not read "
            "alike, so two programs would see two models: take the key out of config.json if the "
            "model was trained without it, or take another model"
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
