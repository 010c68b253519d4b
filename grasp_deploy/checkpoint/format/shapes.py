"""The shape of a model, dense or pruned, from its config.json alone."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from grasp_deploy.checkpoint.format import layer_kinds
from grasp_deploy.checkpoint.format.config_keys import BYSTANDERS, Count, Limits, Rope, Size, Sizes
from grasp_deploy.checkpoint.format.families import (
    FAMILIES,
    REMEDY,
    Family,
    family_of,
    with_hub_names,
)
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import read_json, typed
from grasp_deploy.pruning.norms import norms_of

APART = ("per_layer_config", "quantization_config")  # what the dense model does not have
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}  # as safetensors call them


class LayerShape(Struct, frozen=True, omit_defaults=True):
    """The sizes that pruning changes in a decoder layer: heads, and FFN channels or experts."""

    num_attention_heads: Count  # 0 where attention is linear
    num_key_value_heads: Count
    intermediate_size: Size  # of each expert, where there are some
    num_experts: Size | None = None

    @property
    def ffn_units(self) -> int:
        """The number of experts, or of FFN channels where there are none."""
        return self.intermediate_size if self.num_experts is None else self.num_experts

    @property
    def stated(self) -> dict[str, int]:
        """The layer's entry in `per_layer_config`."""
        other = "intermediate_size" if self.num_experts else ""
        return {key: size for key, size in structs.asdict(self).items() if size and key != other}


@dataclass(frozen=True)
class ModelShape:
    """All that decides which weights a model has and how large they are."""

    family: Family
    pruned: bool
    hidden_size: int
    vocab_size: int
    head_dim: int
    layers: tuple[LayerShape, ...]
    tied_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    dtype: str
    windows: layer_kinds.Windows = layer_kinds.NO_WINDOWS
    quantization: str | None = None  # the method, where the weights were quantised afterwards
    group_columns: int = 0  # that share a scale, if several quantised weights share one number
    stored_bytes: int | None = None  # of such weights; shape and dtype do not tell them
    experts_per_token: int = 0  # 0: no layer has experts
    scales_queries: bool = False  # at some of its positions
    linear: layer_kinds.LinearAttention | None = None
    in_float32: frozenset[str] = frozenset()  # names of tensors that are not in the dtype

    @property
    def bytes_per_parameter(self) -> int:
        return int(self.dtype[-2:]) // 8  # the name states the bits

    @property
    def query_heads_per_group(self) -> int:
        """`G`: query heads that share one KV head; the same in every layer that has some."""
        first = next(layer for layer in self.layers if layer.num_key_value_heads)
        return first.num_attention_heads // first.num_key_value_heads

    def layer_of(self, kv_groups: int, ffn_units: int) -> LayerShape:
        """A layer with so many KV groups, and FFN channels or experts."""
        heads, first = kv_groups * self.query_heads_per_group, self.layers[0]
        if self.experts_per_token:
            return LayerShape(heads, kv_groups, first.intermediate_size, ffn_units)
        return LayerShape(heads, kv_groups, ffn_units)

    @property
    def ffn_parameters(self) -> int:
        """Parameters of an FFN channel: rows of gate and up, a column of down; or of an expert."""
        if self.experts_per_token:  # its three matrices and its row of the router
            return (3 * self.layers[0].intermediate_size + 1) * self.hidden_size
        return 3 * self.hidden_size + 2 * self.mlp_bias

    @property
    def kv_parameters(self) -> int:
        """Parameters of a KV group: rows of q, k and v with their biases, columns of o.

        Without biases it weighs `(2G + 2)·D / 3` FFN channels (section 3.2).
        """
        rows = (1 + self.family.is_hybrid) * self.query_heads_per_group + 2  # heads of them
        heads = rows + self.query_heads_per_group
        return self.head_dim * (heads * self.hidden_size + rows * self.qkv_bias)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of the checkpoint, in the order of the layers."""
        ends = (self.vocab_size, self.hidden_size)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": ends}
        for index in range(len(self.layers)):
            for tail, shape in self._layer_tensor_shapes(index).items():
                shapes[f"model.layers.{index}.{tail}"] = shape
        shapes["model.norm.weight"] = ends[1:]
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = ends
        return shapes

    def _layer_tensor_shapes(self, index: int) -> dict[str, tuple[int, ...]]:
        layer, d = self.layers[index], self.hidden_size
        query_rows = layer.num_attention_heads * self.head_dim
        kv_rows = layer.num_key_value_heads * self.head_dim
        is_linear = self.linear is not None and index in self.linear.layers
        linears = {  # name: (out features, in features, has a bias)
            "self_attn.q_proj": (query_rows * (1 + self.family.is_hybrid), d, self.qkv_bias),
            "self_attn.k_proj": (kv_rows, d, self.qkv_bias),
            "self_attn.v_proj": (kv_rows, d, self.qkv_bias),
            "self_attn.o_proj": (d, query_rows, self.o_bias),
        }
        linears = {} if is_linear else linears
        mlps = ["mlp"]
        if layer.num_experts is not None:
            linears["mlp.gate"] = (layer.num_experts, d, False)
            mlps = [f"mlp.experts.{expert}" for expert in range(layer.num_experts)]
        for mlp in mlps:
            linears[f"{mlp}.gate_proj"] = (layer.intermediate_size, d, self.mlp_bias)
            linears[f"{mlp}.up_proj"] = (layer.intermediate_size, d, self.mlp_bias)
            linears[f"{mlp}.down_proj"] = (d, layer.intermediate_size, self.mlp_bias)
        shapes: dict[str, tuple[int, ...]] = {}
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{name}.bias"] = (rows,)
        if self.linear is not None and is_linear:
            shapes |= self.linear.tensor_shapes(d)
        elif self.family.qk_norm:
            shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (self.head_dim,)
        norms = norms_of(self.family.model_type).names
        return shapes | {f"{name}.weight": (d,) for name in norms}

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())

    @property
    def layer_parameters(self) -> list[int]:
        """Parameters of each layer, norms included."""
        layers = map(self._layer_tensor_shapes, range(len(self.layers)))
        return [sum(math.prod(shape) for shape in shapes.values()) for shapes in layers]

    @property
    def weight_bytes(self) -> int:
        wider = (math.prod(self.tensor_shapes()[name]) for name in self.in_float32)
        more = sum(wider) * (layer_kinds.FLOAT32_BYTES - self.bytes_per_parameter)
        return self.stored_bytes or self.parameters * self.bytes_per_parameter + more

    def dtype_of(self, name: str) -> str:
        """The dtype of a tensor of the checkpoint."""
        return "float32" if name in self.in_float32 else self.dtype

    def kv_bytes_per_token(self, kv_bytes_per_value: int | None = None) -> int:
        """Bytes that one cached token takes: `Σ 2·K·D·bytes` over the layers."""
        width = kv_bytes_per_value or self.bytes_per_parameter
        return sum(2 * layer.num_key_value_heads * self.head_dim * width for layer in self.layers)

    @property
    def state_bytes_per_sequence(self) -> int:
        """Bytes that a sequence of any length takes in the layers with linear attention."""
        if self.linear is None:
            return 0
        return len(self.linear.layers) * self.linear.state_bytes(self.bytes_per_parameter)


def read_config(path: Path) -> dict[str, Any]:
    """Parse the config of a model folder or a file; InputError if it is missing or broken."""
    if path.is_dir() and not (path / "config.json").exists():
        raise InputError(f"{path} holds no config.json: name a model's folder or a hub id")
    return with_hub_names(read_json(path / "config.json" if path.is_dir() else path, REMEDY))


def limits_of(config: dict[str, Any], source: str | Path = "config.json") -> Limits:
    """The limits on tokens in a parsed config.json; InputError for values of another type."""
    return typed(config, Limits, source, REMEDY)


def model_shape(config: dict[str, Any]) -> ModelShape:
    """The shape in a parsed config.json; InputError for an unsupported or inconsistent one."""
    config = with_hub_names(config)
    family, pruned = family_of(config)
    sizes = typed(config, Sizes, "config.json", REMEDY)
    _refuse_foreign_keys(config, family)
    rope = sizes.rope_parameters or Rope()
    layer_kinds.check_rope(sizes, family)
    heads, quantization = sizes.num_attention_heads, sizes.quantization_config
    kv_heads = config.get("num_key_value_heads", family.default_key_value_heads) or heads
    ffn = layer_kinds.experts_in(sizes) if family.has_experts else (sizes.intermediate_size,)
    dense_layer = LayerShape(heads, kv_heads, *ffn)
    if sizes.per_layer_config and not pruned:
        raise InputError(f"config.json of a dense model has per_layer_config: {REMEDY}")
    stated = sizes.per_layer_config or {}
    per_layer = {int(layer): row for layer, row in stated.items()}
    if len(per_layer) < len(stated) or max(per_layer, default=0) >= sizes.num_hidden_layers:
        raise InputError(f"per_layer_config in config.json has a layer twice or too many: {REMEDY}")
    rows = [per_layer.get(layer, {}) for layer in range(sizes.num_hidden_layers)]
    linear = layer_kinds.linear_attention(sizes) if family.is_hybrid else None
    for layer in linear.layers if linear else ():
        rows[layer] = {**rows[layer], "num_attention_heads": 0, "num_key_value_heads": 0}
    has_window = config.get("sliding_window", True) is not None
    shape = ModelShape(
        family=family,
        pruned=pruned,
        hidden_size=sizes.hidden_size,
        vocab_size=sizes.vocab_size,
        head_dim=sizes.head_dim or family.default_head_dim or max(1, sizes.hidden_size // heads),
        layers=tuple(structs.replace(dense_layer, **row) for row in rows),
        tied_embeddings=_flag(config, "tie_word_embeddings", family.tied),
        qkv_bias=_flag(config, family.qkv_bias),
        o_bias=_flag(config, family.o_bias),
        mlp_bias=_flag(config, family.mlp_bias),
        dtype=_dtype(sizes),
        windows=layer_kinds.windows_of(sizes, family, has_window),
        quantization=quantization.quant_method if quantization else None,
        group_columns=quantization.group_columns if quantization else 0,
        experts_per_token=(sizes.num_experts_per_tok or 0) if family.has_experts else 0,
        scales_queries=(rope.scales_from or math.inf) < (sizes.max_position_embeddings or math.inf),
        linear=linear,
    )
    _check_heads(shape)
    return shape


def dense_shape(config: dict[str, Any]) -> ModelShape:
    """The shape of the dense model that a pruned config.json came from (its global sizes)."""
    return replace(model_shape({k: v for k, v in config.items() if k not in APART}), pruned=False)


def _refuse_foreign_keys(config: dict[str, Any], family: Family) -> None:
    """Raise InputError for a key with a value that the family's class does not declare."""
    others = {key for other in FAMILIES if other != family for key in other.own}
    known = BYSTANDERS.union(Sizes.__struct_fields__).difference(family.foreign, others)
    for key, value in config.items():
        says = value or key in ("is_causal", "qkv_bias")  # null, false, 0 say nothing of others
        if says and key not in known and not key.startswith("_"):
            raise InputError(
                f"config.json says {key[:60]} = {value!r:.40}, which transformers and vLLM may not "
                "read alike, so two programs would see two models: take the key out of config.json "
                "if the model was trained without it, or take another model"
            )


def _flag(config: dict[str, Any], rule: bool | str, default: bool = False) -> bool:
    return bool(config.get(rule, default)) if isinstance(rule, str) else rule


def _dtype(sizes: Sizes) -> str:
    name = (sizes.dtype or sizes.torch_dtype or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(
            f"config.json states {name:.60}, which cannot be pruned: take a model in "
            f"{', '.join(DTYPES)}, or correct its dtype if the tensors have another"
        )
    return name


def _check_heads(shape: ModelShape) -> None:
    for index, layer in enumerate(shape.layers):
        if layer.ffn_units < shape.experts_per_token:
            raise InputError(
                f"layer {index} has fewer experts ({layer.ffn_units}) than a token takes "
                f"({shape.experts_per_token}): its config.json is damaged; {REMEDY}"
            )
        if layer.num_attention_heads != layer.num_key_value_heads * shape.query_heads_per_group:
            raise InputError(
                f"layer {index} has num_attention_heads = {layer.num_attention_heads} and "
                f"num_key_value_heads = {layer.num_key_value_heads} (where config.json has none: "
                f"{shape.family.default_key_value_heads or 'as many'}), and KV heads need equally "
                f"many query heads each: its config.json is damaged; {REMEDY}"
            )
    experts = sum(layer.num_experts or 0 for layer in shape.layers)
    if experts > layer_kinds.MOST_EXPERTS:  # whose names alone fill memory
        raise InputError(f"config.json gives the layers {experts:,} experts in all: {REMEDY}")
