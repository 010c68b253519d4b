"""What layers may have beside plain attention and MLPs: windows, linear attention, experts."""

from dataclasses import dataclass

from msgspec import structs

from grasp_deploy.checkpoint.format.config_keys import Rope, Sizes
from grasp_deploy.checkpoint.format.families import REMEDY, Family
from grasp_deploy.errors import InputError

MOST_EXPERTS = 100_000  # of all layers; a model of 94 layers has 12,032
KINDS = ("linear_attention", "full_attention")
FLOAT32_BYTES = 4
DEFAULT_WINDOW = 4096  # of transformers' classes
CHUNK = 64  # tokens that linear attention computes at once
# Qwen3.5 holds these in float32 where all else is bfloat16, and Qwen3.6 does not.
MAYBE_FLOAT32 = ("linear_attn.A_log", "linear_attn.norm.weight")


@dataclass(frozen=True)
class Windows:
    """How many layers with plain attention see the last `tokens` alone, and how many see all."""

    tokens: int = 0
    narrow: int = 0
    wide: int = 0

    @property
    def are_mixed(self) -> bool:
        return bool(self.narrow and self.wide)


NO_WINDOWS = Windows()


@dataclass(frozen=True)
class LinearAttention:
    """Gated DeltaNet: its heads are no units, since all layers share one shape of state."""

    layers: tuple[int, ...]  # that have it
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    kernel: int  # tokens that the convolution sees
    float32_states: bool  # in vLLM

    @property
    def _columns(self) -> tuple[int, int]:
        """Channels of the convolution (queries, keys, values), and those of the values alone."""
        values = self.value_heads * self.value_width
        return 2 * self.key_heads * self.key_width + values, values

    def divides(self, workers: int) -> bool:
        """True if so many workers can share the heads evenly; pruning does not change them."""
        return not (self.key_heads % workers or self.value_heads % workers)

    def tensor_shapes(self, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor of a layer, by its name within the layer."""
        mixed, values = self._columns
        rows = {"qkv": mixed, "z": values, "b": self.value_heads, "a": self.value_heads}
        return {
            "linear_attn.dt_bias": (self.value_heads,),
            "linear_attn.A_log": (self.value_heads,),
            "linear_attn.conv1d.weight": (mixed, 1, self.kernel),
            "linear_attn.norm.weight": (self.value_width,),
            "linear_attn.out_proj.weight": (hidden_size, values),
            **{f"linear_attn.in_proj_{name}.weight": (n, hidden_size) for name, n in rows.items()},
        }

    def state_bytes(self, bytes_per_value: int) -> int:
        """Bytes of one layer's state of a sequence of any length: convolution and recurrence."""
        width = FLOAT32_BYTES if self.float32_states else bytes_per_value
        recurrent = self.value_heads * self.key_width * self.value_width * width
        return (self.kernel - 1) * self._columns[0] * bytes_per_value + recurrent

    def kept_bytes(self, bytes_per_value: int) -> int:
        """Bytes of a token that one layer keeps for the backward pass, in transformers' own code.

        That copies queries, keys and values of each value head in float32, several times.
        """
        mixed, values = self._columns
        keys = self.value_heads * self.key_width
        decays, state = self.value_heads * CHUNK, keys * self.value_width // CHUNK
        copies = 12 if bytes_per_value == FLOAT32_BYTES else 8  # what is cast is laid out anew
        in_float32 = copies * keys + 6 * values + 5 * decays + state
        return FLOAT32_BYTES * in_float32 + (2 * mixed + values) * bytes_per_value


def linear_attention(sizes: Sizes) -> LinearAttention:
    """The linear attention of a parsed config.json; InputError for what cannot be cut or served."""
    kinds, depth = sizes.layer_types or [], sizes.num_hidden_layers
    is_known = len(kinds) == depth and set(kinds) <= set(KINDS) and KINDS[1] in kinds
    if not is_known or sizes.attn_output_gate is False:  # which vLLM alone would read
        raise InputError(
            f"layer_types in config.json must name each of {depth} layers {' or '.join(KINDS)}, "
            f"one at least the latter, with attn_output_gate: {REMEDY}, or take another model"
        )
    linear = LinearAttention(
        layers=tuple(index for index, kind in enumerate(kinds) if kind == KINDS[0]),
        key_heads=sizes.linear_num_key_heads or 16,  # defaults of transformers' class
        value_heads=sizes.linear_num_value_heads or 32,
        key_width=sizes.linear_key_head_dim or 128,
        value_width=sizes.linear_value_head_dim or 128,
        kernel=sizes.linear_conv_kernel_dim or 4,
        float32_states=sizes.mamba_ssm_dtype == "float32",
    )
    if linear.value_heads % linear.key_heads:
        raise InputError(
            f"config.json gives {linear.key_heads} key heads of linear attention "
            f"{linear.value_heads} value heads, not so many each: {REMEDY}"
        )
    return linear


def experts_in(sizes: Sizes) -> tuple[int, int]:
    """Width and number of a layer's experts; InputError for what is missing or cannot be cut."""
    experts, each, width = sizes.num_experts, sizes.num_experts_per_tok, sizes.moe_intermediate_size
    if experts is None or each is None or width is None:
        raise InputError(
            f"config.json lacks num_experts, num_experts_per_tok or moe_intermediate_size: {REMEDY}"
        )
    if each > experts:
        raise InputError(
            f"config.json gives a token {each} of {experts} experts (num_experts_per_tok): {REMEDY}"
        )
    if sizes.mlp_only_layers or (sizes.decoder_sparse_step or 1) > 1:
        raise InputError(
            "a model with experts in some layers only (mlp_only_layers, decoder_sparse_step) is "
            "not supported: take one with experts in every layer"
        )
    return width, experts


def check_rope(sizes: Sizes, family: Family) -> None:
    """Raise InputError for rotary parameters that the family's layers cannot follow.

    transformers reads `rope_scaling` where both keys are there, and leaves the other unread.
    """
    rope, older = sizes.rope_parameters or Rope(), sizes.rope_scaling
    scaling = Rope(**structs.asdict(older)) if older else Rope()
    first, second = (_spelled_out(each, sizes.rope_theta) for each in (rope, scaling))
    if first != second and Rope() not in (rope, scaling):
        raise InputError(f"config.json has rope_scaling beside another rope_parameters: {REMEDY}")
    parts = (rope.partial_rotary_factor or 1, scaling.partial_rotary_factor or 1)
    is_part = not family.is_hybrid and min(parts) < 1
    if is_part or rope.by_kind != (rope if family.rope_by_kind else Rope()):
        kinds = "those of each kind of layer" if family.rope_by_kind else "those of all layers"
        kinds = "those of whole heads (partial_rotary_factor 1)" if is_part else kinds
        raise InputError(f"rope_parameters of a {family.stem} must be {kinds}: {REMEDY}")
    if bool(rope.scales_from) != family.scales_queries:
        raise InputError(
            f"rope_parameters of a {family.stem} {'must' if family.scales_queries else 'cannot'} "
            f"state llama_4_scaling_beta and original_max_position_embeddings: {REMEDY}"
        )


def _spelled_out(rope: Rope, theta: float | None) -> Rope:
    """The parameters by their newer names, with the angle that the model states for all."""
    kind, angle = rope.rope_type or rope.type, rope.rope_theta or theta
    return structs.replace(rope, rope_type=kind, rope_theta=angle, type=None)


def windows_of(sizes: Sizes, family: Family, has_window: bool) -> Windows:
    """The windows of a model's layers; `has_window` is False where config.json says so."""
    layers, narrow = sizes.num_hidden_layers, 0
    if sizes.layer_types is not None:
        layers = sum(kind != KINDS[0] for kind in sizes.layer_types)
        narrow = sum(kind not in KINDS for kind in sizes.layer_types)
    elif family.rope_by_kind:  # one in `sliding_window_pattern` layers sees all
        narrow = layers - layers // (sizes.sliding_window_pattern or 6)
    elif has_window and sizes.use_sliding_window:
        first = 28 if sizes.max_window_layers is None else sizes.max_window_layers
        narrow = max(0, layers - first)
    elif has_window and family.model_type in ("mistral", "ministral3"):
        narrow = layers
    return Windows(sizes.sliding_window or DEFAULT_WINDOW, narrow, layers - narrow)
