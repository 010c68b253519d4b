"""The supported model families, one row each, and their registration with transformers."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

REMEDY = "fetch the model again"
WHOLE = ["Qwen3_5ForConditionalGeneration"]  # a vision-language model
OF_BOTH = ("tie_word_embeddings", "dtype", "torch_dtype", "quantization_config")  # at both levels
IN_WHOLE = "model.language_model."  # prefix of the language model's tensors in such a model


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
    foreign: tuple[str, ...] = ()  # keys that its class does not declare and vLLM reads
    own: tuple[str, ...] = ()  # keys that no other family's class declares
    tied: bool = False  # embeddings, where config.json does not say
    rope_by_kind: bool = False  # rope_parameters hold those of each kind of layer
    needs_first_token: bool = False  # predicts text badly that does not begin with bos_token
    has_experts: bool = False
    scales_queries: bool = False  # by position, as rope_parameters say
    is_hybrid: bool = False  # attention is linear in some layers, and has an output gate in others

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
    Family(
        *("llama", "Llama", "attention_bias", "attention_bias", "mlp_bias", False, None, None),
        foreign=("sliding_window",),
    ),
    Family(
        *("mistral", "Mistral", False, False, False, False, None, 8),
        foreign=("attention_bias", "mlp_bias"),
    ),
    Family(
        *("ministral3", "Ministral3", False, False, False, False, 128, 8),
        foreign=("attention_bias", "mlp_bias", "layer_types", "rope_scaling"),
        scales_queries=True,
    ),
    Family(
        *("qwen2", "Qwen2", True, False, False, False, None, 32),
        foreign=("attention_bias", "mlp_bias"),
    ),
    Family("qwen3", "Qwen3", "attention_bias", "attention_bias", False, True, 128, 32),
    Family(
        *("granite", "Granite", "attention_bias", "attention_bias", "mlp_bias", False, None, None),
        foreign=("sliding_window", "layer_types"),
        own=(
            *("embedding_multiplier", "attention_multiplier", "residual_multiplier"),
            "logits_scaling",
        ),
    ),
    Family(
        *("gemma3_text", "Gemma3", "attention_bias", "attention_bias", False, True, 256, 4),
        foreign=("mlp_bias", "use_sliding_window", "max_window_layers"),
        own=(
            *("hidden_activation", "query_pre_attn_scalar", "rope_local_base_freq"),
            "sliding_window_pattern",
        ),
        tied=True,
        rope_by_kind=True,
        needs_first_token=True,
    ),
    Family(
        *("qwen3_moe", "Qwen3Moe", False, False, False, True, None, 4),
        foreign=("attention_bias", "use_sliding_window", "layer_types"),
        own=(
            *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
            *("decoder_sparse_step", "mlp_only_layers"),
            *("router_aux_loss_coef", "output_router_logits"),
        ),
        has_experts=True,
    ),
    Family(
        *("qwen3_5_text", "Qwen3_5", False, False, False, True, 256, 4),
        foreign=("attention_bias", "mlp_bias", "sliding_window"),  # vLLM drops biases
        own=(
            *("linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim"),
            *("linear_num_key_heads", "linear_num_value_heads", "attn_output_gate"),
            *("mamba_ssm_dtype", "partial_rotary_factor"),
        ),
        is_hybrid=True,
    ),
)


class Kind(Struct):
    """The keys of a config.json that decide if a model is supported."""

    model_type: str = "missing"
    architectures: list[str] | None = None
    hidden_act: str = "silu"
    hidden_activation: str = "gelu_pytorch_tanh"  # of Gemma 3
    layer_types: list[str] | None = None
    sliding_window: int | None = 4096  # the default of transformers' classes
    use_sliding_window: bool | None = False


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
            return family, pruned
    name = kind.architectures[0] if kind.architectures else "unnamed"
    if "text_config" in config:
        typed(config["text_config"], dict[str, Any], "text_config in config.json", REMEDY)
        raise InputError(
            f"{name} holds more than a language model (its config.json has a text_config), and no "
            "other part is supported: save the language model alone, as examples/text_model.py does"
        )
    raise InputError(
        f"the architecture {name} (model_type {kind.model_type}) is not supported: "
        f"take a model of one of these: {', '.join(family.architecture for family in FAMILIES)}"
    )


def with_hub_names(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json with the names of keys that the hub uses, for the language model alone.

    transformers 5 saves `num_experts` by another name. A vision-language Qwen3.5 has the language
    model's keys in `text_config`. Keys of a head that drafts tokens (MTP) are left out.
    """
    text = config.get("text_config")
    is_whole = config.get("model_type") == "qwen3_5" and config.get("architectures", WHOLE) == WHOLE
    if is_whole and isinstance(text, dict):
        outer = {key: config[key] for key in OF_BOTH if key in config}
        if differing := [key for key in outer if text.get(key, outer[key]) != outer[key]]:
            raise InputError(
                f"config.json and its text_config differ in {differing[0]}, and programs read one "
                "or the other: make them equal, as the model was trained"
            )
        config = {**text, **outer, "architectures": ["Qwen3_5ForCausalLM"]}
    of_qwen = str(config.get("model_type")).endswith("qwen3_5_text")
    left_out = {key for key in config if of_qwen and key.startswith("mtp_")}
    rope = config.get("rope_parameters")
    if of_qwen and isinstance(rope, dict):
        of_text = {k: v for k, v in rope.items() if not k.startswith("mrope_")}  # axes of images
        config = {**config, "rope_parameters": of_text}
    saved = config.get("num_local_experts")
    if saved and config.get("num_experts", saved) == saved:
        config = {**config, "num_experts": saved}
        left_out.add("num_local_experts")
    return {key: value for key, value in config.items() if key not in left_out}


def stored_name(name: str, names: Container[str]) -> str:
    """A tensor's name among a file's `names`, where a vision-language model has a prefix."""
    in_whole = name.replace("model.", IN_WHOLE, 1)
    return in_whole if in_whole in names else name


def _refuse_what_is_not_served(family: Family, pruned: bool, kind: Kind) -> None:
    """Refuse what cannot be cut, and what transformers loads and vLLM does not."""
    is_gemma = "hidden_activation" in family.own
    key, served = ("hidden_activation", "gelu_pytorch_tanh") if is_gemma else ("hidden_act", "silu")
    if (found := getattr(kind, key)) != served:
        raise InputError(
            f"the activation {found} ({key}) is not supported, since vLLM serves these models "
            f"with {served} alone: take a model with {served}"
        )
    uses_window = kind.use_sliding_window or family.model_type not in ("qwen2", "qwen3")
    slides = "sliding_attention" in (kind.layer_types or [])
    if slides and not (kind.sliding_window and uses_window):
        raise InputError(
            "layer_types in config.json names layers with a window, but no window is used: state "
            "sliding_window, or take sliding_attention out"
        )
    is_ministral = family.model_type == "mistral" and not pruned and kind.layer_types
    if is_ministral or (family.model_type == "llama" and slides):  # the former is another model
        raise InputError(
            f"a {family.stem} whose config.json has layer_types is not supported, since programs "
            "do not read it alike: take a model without them, or a Qwen2 or Qwen3"
        )


def register() -> None:
    """Let transformers' Auto classes load pruned checkpoints without remote code.

    Imports transformers and torch. May be called any number of times.
    """
    from transformers import AutoModel, AutoModelForCausalLM

    from grasp_deploy.checkpoint.format import modeling_grasp

    for family, config in zip(FAMILIES, register_configs(), strict=True):
        backbone = getattr(modeling_grasp, f"Grasp{family.stem}Model")
        with_head = getattr(modeling_grasp, family.pruned_architecture)
        AutoModel.register(config, backbone, exist_ok=True)
        AutoModelForCausalLM.register(config, with_head, exist_ok=True)


def register_configs() -> list[type[PreTrainedConfig]]:
    """Register the classes of config.json alone; return them in the order of FAMILIES."""
    from transformers import AutoConfig

    from grasp_deploy.checkpoint.format import configuration_grasp

    configs = [getattr(configuration_grasp, f"Grasp{family.stem}Config") for family in FAMILIES]
    for config in configs:
        AutoConfig.register(config.model_type, config, exist_ok=True)
    return configs
