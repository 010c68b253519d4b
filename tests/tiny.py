"""Tiny random models of every family, dense and pruned by hand, for all tests.

Heads are 32 wide, the least that vLLM's CPU build supports. Some have no `head_dim`: their hidden
size is four heads wide instead of the 64 of the others.
"""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from grasp_deploy.checkpoint.format import configuration_grasp, modeling_grasp
from grasp_deploy.checkpoint.format.families import FAMILIES, register

register()
STEMS = {family.model_type: family.stem for family in FAMILIES}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
NO_HEAD_DIM = ("qwen2", "granite")
GRANITE = {
    "family": "granite",
    **{"embedding_multiplier": 2.0, "attention_multiplier": 0.25},
    **{"residual_multiplier": 0.5, "logits_scaling": 1.5},
}
MINISTRAL3_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 32.0,
    "original_max_position_embeddings": 16,  # so that most positions of a test lie beyond
    "llama_4_scaling_beta": 0.5,
    **{"mscale": 1.0, "mscale_all_dim": 1.0},
}
MINISTRAL3 = {"family": "ministral3", "rope_parameters": MINISTRAL3_ROPE}
GEMMA3 = {
    "family": "gemma3_text",
    **{"sliding_window": 8, "query_pre_attn_scalar": 48, "sliding_window_pattern": 2},
    "tie_word_embeddings": False,
}
EXPERTS = {
    "family": "qwen3_moe",
    **{"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
QWEN3_5 = {"family": "qwen3_5_text"}
SLIDING = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
# Arguments of `tiny_model` for the equivalence tests.
RANDOM, MAGNITUDE = (f"benchmarks.baselines.one_shot:{name}" for name in ("random", "magnitude"))
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-mha": {"family": "llama", "num_key_value_heads": 4},
    "llama-tied": {"family": "llama", "tie_word_embeddings": True},
    "llama-biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-3-rope": {"family": "llama", "rope_parameters": LLAMA3_ROPE},
    "mistral": {"family": "mistral", "sliding_window": None},
    "mistral-sliding": {"family": "mistral", "sliding_window": 8},
    "ministral3": MINISTRAL3,
    "ministral3-tied": {**MINISTRAL3, "tie_word_embeddings": True},
    "ministral3-sliding": {**MINISTRAL3, "sliding_window": 8},
    "qwen2": {"family": "qwen2"},
    "qwen2-tied": {"family": "qwen2", "tie_word_embeddings": True},
    "qwen2-head-dim": {"family": "qwen2", "hidden_size": 64, "head_dim": 32},
    "qwen2-sliding": {"family": "qwen2", **SLIDING},
    "qwen3": {"family": "qwen3"},
    "qwen3-tied": {"family": "qwen3", "tie_word_embeddings": True},
    "qwen3-sliding": {"family": "qwen3", **SLIDING},
    "qwen3-biases": {"family": "qwen3", "attention_bias": True},
    "qwen3-moe": EXPERTS,
    "qwen3-moe-renormed": {**EXPERTS, "norm_topk_prob": True, "tie_word_embeddings": True},
    "qwen3-moe-mha": {**EXPERTS, "num_key_value_heads": 4, "num_experts_per_tok": 1},
    "qwen3-5": QWEN3_5,
    "qwen3-5-tied": {**QWEN3_5, "tie_word_embeddings": True},
    "qwen3-5-mha": {**QWEN3_5, "num_key_value_heads": 4},
    "qwen3-5-one-group": {**QWEN3_5, "num_key_value_heads": 1},
    "qwen3-5-linear-last": {
        **QWEN3_5,
        "layer_types": ["full_attention", "full_attention", "linear_attention"],
    },
    "granite": GRANITE,
    "granite-tied": {**GRANITE, "tie_word_embeddings": True},
    "granite-biases": {**GRANITE, "attention_bias": True, "mlp_bias": True},
    "gemma3-sliding": GEMMA3,
    "gemma3-sliding-tied": {**GEMMA3, "tie_word_embeddings": True},
    "gemma3-sliding-biases": {**GEMMA3, "attention_bias": True, "num_key_value_heads": 4},
    "gemma3-full": {**GEMMA3, "layer_types": 3 * ["full_attention"]},
}
# One layer's kept KV groups and kept FFN channels, or experts; every layer is different.
Kept = Sequence[tuple[Sequence[int], Sequence[int]]]


def tiny_config(family: str, **overrides: Any) -> PreTrainedConfig:
    """Config of a dense model of 3 layers, 4 query heads on 2 KV heads, 96 FFN channels."""
    sizes: dict[str, Any] = {
        "hidden_size": 128 if family in NO_HEAD_DIM else 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 256,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": 0,
        "architectures": [f"{STEMS[family]}ForCausalLM"],
    }
    if family not in NO_HEAD_DIM:
        sizes["head_dim"] = 32
    if family == "qwen3_5_text":  # its linear heads are 128 wide, as vLLM's CPU kernel wants them
        sizes |= {"linear_num_key_heads": 1, "linear_num_value_heads": 2}
        layers = overrides.get("num_hidden_layers", 3)
        first = min(1, layers - 1) * ["linear_attention"]
        sizes["layer_types"] = [*first, *(layers - len(first)) * ["full_attention"]]
    return AutoConfig.for_model(family, **{**sizes, **overrides})


def tiny_model(
    family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any
) -> PreTrainedModel:
    """A dense model in eval mode whose layers matter and whose logits are well spread."""
    model = AutoModelForCausalLM.from_config(tiny_config(family, **overrides))
    generator, is_gemma = torch.Generator().manual_seed(seed), family == "gemma3_text"
    adds_one = is_gemma or family == "qwen3_5_text"
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight"):  # most add the 1 themselves in these families
                weight.copy_((not adds_one or "linear_attn" in name) + 0.2 * noise)
            elif is_gemma and "embed_tokens" in name:  # and its model scales them up
                weight.copy_(0.1 * noise)
            elif name.endswith(".bias"):
                weight.copy_(0.3 * noise)
            elif "embed_tokens" in name or "lm_head" in name:
                weight.copy_(0.5 * noise)
            else:
                weight.copy_(1.5 * noise / weight.shape[-1] ** 0.5)
    return model.to(dtype).eval()


@torch.no_grad()
def logits_of(model: Any, ids: Tensor) -> Tensor:
    """`(B, T, V)` logits of `(B, T)` ids."""
    logits: Tensor = model(input_ids=ids).logits
    return logits


def tiny_tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer of 256 tokens, one for each byte, with a chat template; byte 0 ends a sequence.

    Byte 2, which is in no text, gives its place to byte 1 twice: llama.cpp wants a merge.
    """
    letters = bytes_to_unicode()
    texts = {**letters, 2: letters[1] * 2}
    merge = (letters[1], letters[1])
    tokenizer = Tokenizer(models.BPE({text: i for i, text in texts.items()}, merges=[merge]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = {"eos_token": letters[0], "chat_template": template}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


def save_tiny(
    family: str,
    directory: Path,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> PreTrainedModel:
    """Write a dense model with its tokenizer, as a folder that loads; returns the model."""
    model = tiny_model(family, seed, dtype, **overrides)
    model.save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return model


def pruned_config(
    dense: PreTrainedConfig, layers: Sequence[tuple[int, int]]
) -> configuration_grasp.LayerSizesMixin:
    """The config of a pruned model whose layers keep so many (KV heads, FFN units)."""
    ffn = "num_experts" if dense.model_type == "qwen3_moe" else "intermediate_size"
    group = dense.num_attention_heads // dense.num_key_value_heads
    config_class = getattr(configuration_grasp, f"Grasp{STEMS[dense.model_type]}Config")
    per_layer = {index: {ffn: channels} for index, (_, channels) in enumerate(layers)}
    for index, (kv_heads, _) in enumerate(layers):
        if kv_heads:  # none where attention is linear
            per_layer[index]["num_attention_heads"] = kv_heads * group
            per_layer[index]["num_key_value_heads"] = kv_heads
    sizes = {key: value for key, value in stated(dense).items() if key != "model_type"}
    return config_class(**{**sizes, "per_layer_config": per_layer})


def stated(config: PreTrainedConfig) -> dict[str, Any]:
    """What a config.json of the hub states: transformers saves one key by another name."""
    keys: dict[str, Any] = config.to_dict()
    return {"num_experts" if k == "num_local_experts" else k: v for k, v in keys.items()}


def random_kept(config: PreTrainedConfig) -> Kept:
    """Units for every layer to keep: all of the first layer, fewer in each layer after it."""
    generator = torch.Generator().manual_seed(0)
    kept = []
    for layer in range(config.num_hidden_layers):
        kinds, least = (config.num_key_value_heads, config.intermediate_size), 1
        if config.model_type == "qwen3_moe":
            kinds, least = (kinds[0], config.num_experts), config.num_experts_per_tok
        counts = [max(1, kinds[0] - layer * (kinds[0] // 3 + 1)) * has_groups(config, layer)]
        counts.append(max(least, kinds[1] - layer * (kinds[1] // 3 + 1)))
        picks = [
            sorted(torch.randperm(kind, generator=generator)[:count].tolist())
            for kind, count in zip(kinds, counts, strict=True)
        ]
        kept.append((picks[0], picks[1]))
    return kept


def has_groups(config: PreTrainedConfig, layer: int) -> bool:
    """False where attention is linear."""
    kinds = getattr(config, "layer_types", None)
    return not kinds or kinds[layer] != "linear_attention"


def rows_of(heads: Sequence[int], width: int) -> list[int]:
    """The rows (or columns) that heads, each `width` wide, take up in a projection."""
    return [head * width + offset for head in heads for offset in range(width)]


def head_dim_of(dense: PreTrainedModel) -> int:
    config = dense.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(width)


def slice_by_hand(dense: PreTrainedModel, kept: Kept) -> PreTrainedModel:
    """The pruned model that keeps these units; an independent reference for the product's."""
    config, head_dim = dense.config, head_dim_of(dense)
    group_rows = head_dim * config.num_attention_heads // config.num_key_value_heads
    counts = [(len(groups), len(channels)) for groups, channels in kept]
    state = dense.state_dict()
    for index, (groups, channels) in enumerate(kept):
        query, key = rows_of(groups, group_rows), rows_of(groups, head_dim)
        rows: dict[str, Sequence[int]] = {"q_proj": query, "k_proj": key, "v_proj": key}
        if config.model_type == "qwen3_5_text":  # queries and gates of each head
            rows["q_proj"] = rows_of(groups, 2 * group_rows)
        rows |= {"gate_proj": channels, "up_proj": channels}
        rows |= {"gate": channels, "experts": channels}  # router, and tensors of all experts
        columns: dict[str, Sequence[int]] = {"o_proj": query, "down_proj": channels}
        for name in [name for name in state if name.startswith(f"model.layers.{index}.")]:
            module, kind = name.split(".")[-2:]
            if module in rows:
                state[name] = state[name][list(rows[module])]
            elif module in columns and kind == "weight":
                state[name] = state[name][:, list(columns[module])]
    model_class = getattr(modeling_grasp, f"Grasp{STEMS[config.model_type]}ForCausalLM")
    pruned = model_class(pruned_config(config, counts)).to(dense.dtype).eval()
    pruned.load_state_dict(state)
    return pruned


def _choose_among(kept: Tensor, router: Any, _inputs: Any, output: tuple[Tensor, ...]) -> Any:
    """What a router returns that knows but some experts; a forward hook."""
    chances = output[0][:, kept].softmax(-1)
    weights, places = chances.topk(router.top_k)
    if router.norm_topk_prob:
        weights = weights / weights.sum(1, keepdim=True)
    return output[0], weights, kept[places]


def mask_by_hand(dense: PreTrainedModel, kept: Kept) -> PreTrainedModel:
    """A copy of the dense model in which removed units reach no further layer."""
    masked = copy.deepcopy(dense)
    config = dense.config
    for (groups, channels), layer in zip(kept, masked.model.layers, strict=True):
        width = head_dim_of(dense) * config.num_attention_heads // config.num_key_value_heads
        linears = [(layer.self_attn.o_proj, rows_of(groups, width))] if groups else []
        if config.model_type == "qwen3_moe":
            layer.mlp.gate.register_forward_hook(partial(_choose_among, torch.tensor(channels)))
        else:
            linears.append((layer.mlp.down_proj, list(channels)))
        for linear, columns in linears:
            removed = torch.ones(linear.in_features, dtype=torch.bool)
            removed[columns] = False
            linear.weight.data[:, removed] = 0
    return masked
