"""The keys of a config.json that decide a model, in the types that its readers take."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Share = Annotated[float, Meta(gt=0, le=1)]
Positive = Annotated[float, Meta(gt=0, le=1e15)]
# Keys that change nothing, or that Family and Kind hold. Any other key that Sizes lacks may change
# the model for one reader alone: vLLM reads many that belong to other architectures.
BYSTANDERS = {
    *("architectures", "model_type", "hidden_act", "auto_map", "transformers_version"),
    *("initializer_range", "attention_dropout", "use_cache", "pretraining_tp", "return_dict"),
    *("attn_implementation", "is_llama_config", "transformers.js_config", "max_sequence_length"),
    *("unsloth_fixed", "unsloth_version", "neftune_noise_alpha", "task_specific_params"),
    *("do_sample", "temperature", "top_k", "top_p", "max_length", "chunk_size_feed_forward"),
    *("cache_implementation", "unk_token_id", "full_attention_interval"),
}


class Limits(Struct):
    """Limits on the token ids and the length of a sequence."""

    vocab_size: Size
    max_position_embeddings: Size | None = None


RopeType = Literal["default", "linear", "yarn", "llama3"]  # the same for all readers


class RopeOfKind(Struct, forbid_unknown_fields=True):
    """Parameters of rotary positions in one kind of layer; also `rope_scaling` of older files."""

    factor: Positive | None = None
    rope_theta: Positive | None = None
    original_max_position_embeddings: Size | None = None
    rope_type: RopeType | None = None
    type: RopeType | None = None
    partial_rotary_factor: Share | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool | None = None
    finetuned: bool | None = None


class Rope(RopeOfKind, forbid_unknown_fields=True):
    """`rope_parameters`: of all layers, or of each kind of layer."""

    full_attention: RopeOfKind | None = None
    sliding_attention: RopeOfKind | None = None
    llama_4_scaling_beta: Positive | None = None  # of Ministral 3
    max_position_embeddings: Size | None = None  # no reader looks for it here

    @property
    def by_kind(self) -> "Rope":
        """Only the parameters that are stated for kinds of layers."""
        return Rope(full_attention=self.full_attention, sliding_attention=self.sliding_attention)

    @property
    def scales_from(self) -> int | None:
        """The position from which queries are scaled; None if they never are."""
        return self.original_max_position_embeddings if self.llama_4_scaling_beta else None


# What may differ from layer to layer: other keys would change the model unseen.
LayerSizes = dict[
    Literal["num_attention_heads", "num_key_value_heads", "intermediate_size", "num_experts"], Size
]
LayerNumber = Annotated[str, Meta(pattern=r"\A[0-9]{1,5}\Z")]  # "7", or "07" as transformers saves


class Rounded(Struct):
    group_size: int | None = None  # columns that share a scale; -1: all


class Group(Struct):
    weights: Rounded | None = None


class Quantization(Rounded, kw_only=True):
    """What was done to the weights after they were trained or cut."""

    quant_method: str
    format: str | None = None  # of compressed-tensors, as are the groups of modules
    config_groups: dict[str, Group | list[str]] | None = None  # a list belongs to a preset

    @property
    def group_columns(self) -> int:
        """Columns that share a scale of weights packed into one number, as of 4 bits; else 0."""
        if self.format != "pack-quantized" and self.quant_method not in ("awq", "gptq"):
            return 0
        groups = (self.config_groups or {}).values()
        rounded = [self, *(group.weights for group in groups if isinstance(group, Group))]
        return max(1, *(each.group_size or 1 for each in rounded if each))


class Sizes(Limits, kw_only=True):
    """The keys of a config.json that decide a model, in the types that its readers take.

    A key may be absent if the family has a default for it.
    """

    hidden_size: Size
    num_attention_heads: Size
    intermediate_size: Size
    num_hidden_layers: Annotated[int, Meta(ge=1, le=10_000)]  # beyond any model
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    per_layer_config: dict[LayerNumber, LayerSizes] | None = None
    rope_theta: Positive | None = None
    rope_scaling: RopeOfKind | None = None
    rope_parameters: Rope | None = None
    rms_norm_eps: Annotated[float, Meta(ge=0, le=1)] | None = None
    sliding_window: Size | None = None
    max_window_layers: Count | None = None
    use_sliding_window: bool | None = None
    layer_types: list[str] | None = None
    tie_word_embeddings: bool | None = None
    embedding_multiplier: Positive | None = None
    attention_multiplier: Positive | None = None
    residual_multiplier: Positive | None = None
    logits_scaling: Positive | None = None
    hidden_activation: str | None = None
    query_pre_attn_scalar: Positive | None = None
    rope_local_base_freq: Positive | None = None
    sliding_window_pattern: Size | None = None
    num_experts: Size | None = None
    num_experts_per_tok: Size | None = None
    moe_intermediate_size: Size | None = None
    norm_topk_prob: bool | None = None
    decoder_sparse_step: Count | None = None
    mlp_only_layers: list[Count] | None = None
    router_aux_loss_coef: float | None = None
    output_router_logits: bool | None = None
    linear_conv_kernel_dim: Size | None = None
    linear_key_head_dim: Size | None = None
    linear_value_head_dim: Size | None = None
    linear_num_key_heads: Size | None = None
    linear_num_value_heads: Size | None = None
    attn_output_gate: bool | None = None
    partial_rotary_factor: Share | None = None
    mamba_ssm_dtype: Literal["float32", "bfloat16"] | None = None  # of vLLM's states
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    num_labels: Annotated[int, Meta(ge=0, le=100_000)] | None = None  # each is built as a row
    id2label: dict[Any, Any] | None = None
    label2id: dict[Any, Any] | None = None
    bos_token_id: int | list[int] | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    quantization_config: Quantization | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a padding token for which there is no row of embeddings."""
        if not -self.vocab_size <= (self.pad_token_id or 0) < self.vocab_size:
            raise ValueError(f"pad_token_id is {self.pad_token_id}, of {self.vocab_size:,} tokens")
