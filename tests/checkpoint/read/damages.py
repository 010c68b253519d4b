"""What can be wrong with a model's folder, and what the refusal of it names."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.cli.command import edit_json
from tests.documents import ABSENT

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
NORM, HEAD = "model.norm.weight", "lm_head.weight"
Change = Callable[[Path], object]


def write(name: str, content: object = "") -> Change:
    """Add a file: JSON, or bytes that nobody can read."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        data = json.dumps(content).encode() if content != "" else b"\x80 neither text nor tensors"
        (folder / name).write_bytes(data)

    return change


def config(**changes: object) -> Change:
    return lambda folder: edit_json(folder / "config.json", **changes)


def rope(**changes: object) -> Change:
    return config(rope_parameters={"rope_theta": 1e4, "rope_type": "default", **changes})


def layers(**changes: object) -> Change:
    """Change the second layer of a pruned model."""

    def change(folder: Path) -> None:
        stated = json.loads((folder / "config.json").read_text())["per_layer_config"]
        config(per_layer_config={**stated, "1": {**stated["1"], **changes}})(folder)

    return change


def content(change: Callable[[bytes], bytes]) -> Change:
    """Change the bytes of the weight file."""
    return lambda folder: (folder / WEIGHTS).write_bytes(change((folder / WEIGHTS).read_bytes()))


def tensors(**changes: torch.Tensor | None) -> Change:
    """Replace, add or (None) remove tensors of the first weight file."""

    def change(folder: Path) -> None:
        path = sorted(folder.glob("*.safetensors"))[0]
        changed = {**load_file(path), **changes}
        kept = {name: value for name, value in changed.items() if value is not None}
        save_file(kept, path, {"format": "pt"})

    return change


def stray(name: str) -> Change:
    """Add a weight file with one tensor, which would spoil the model."""
    return lambda folder: save_file({NORM: torch.zeros(64)}, folder / name)


def renamed(name: str, other: str) -> Change:
    return lambda folder: (folder / name).rename(folder / other)


def index_of(change: Callable[[dict[str, Any]], object]) -> Change:
    """Change where an index puts the tensors."""

    def edited(folder: Path) -> None:
        weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
        change(weight_map)
        edit_json(folder / INDEX, weight_map=weight_map)

    return edited


def shuffle(weight_map: dict[str, str]) -> None:
    weight_map[NORM], weight_map[HEAD] = weight_map[HEAD], weight_map[NORM]


def lose_a_shard(folder: Path, kept_as: str = "") -> None:
    """Hide a shard, which the index then names if it is kept under another name."""
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    shard = weight_map[NORM]
    (folder / shard).rename(folder / (kept_as or "gone"))
    if kept_as:
        index_of(lambda m: m.update({k: kept_as for k, v in m.items() if v == shard}))(folder)


def own_head(folder: Path, difference: float = 1.0) -> None:
    head = load_file(folder / WEIGHTS)["model.embed_tokens.weight"].clone()
    head[-1, -1] += difference
    tensors(**{HEAD: head})(folder)


def without_key_value_heads(folder: Path) -> None:
    """A Ministral 3 whose config.json leaves the KV heads to its class, which has more than 4."""
    rope(**SCALED)(folder)
    gone = dict.fromkeys(("num_key_value_heads", "attention_bias", "mlp_bias"), ABSENT)
    edit_json(folder / "config.json", **MINISTRAL, **gone)


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
GEMMA = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
MINISTRAL = {"model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"]}
SCALED = {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}
VISION = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}
WHOLE = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "factor": 2.0}
PART = {**LINEAR, "partial_rotary_factor": 0.5}
EXPERTS = {
    **{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 10**5},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
SLIDING = {"layer_types": ["sliding_attention"] * 3}
GATE = "model.layers.0.mlp.gate_proj.weight"
Q_BIAS = "model.layers.0.self_attn.q_proj.bias"
QWEN2_MOE = {"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"]}
# The model, what is changed of it, and what the line names.
REFUSED: list[tuple[str, Change, str]] = [
    ("experts", config(num_experts=None, num_local_experts=None), "lacks num_experts"),
    ("experts", config(num_experts_per_tok=9), "a token 9 of 8 experts"),
    ("experts", config(mlp_only_layers=[1]), "some layers only"),
    ("experts", config(decoder_sparse_step=2), "some layers only"),
    ("experts", config(num_experts=4), "num_local_experts"),
    ("experts", config(shared_expert_intermediate_size=32), "shared_expert_intermediate_size"),
    *(("experts", config(**{key: True}), key) for key in ("use_sliding_window", "attention_bias")),
    ("experts", config(**QWEN2_MOE), "Qwen2MoeForCausa"),
    ("experts-pruned", layers(num_experts=1), "1 has fewer experts (1) than a token takes (2)"),
    ("dense", write("adapter_config.json", {"peft_type": "LORA"}), "adapter_config.json"),
    *(
        ("dense", stray(name), name)
        for name in ("adapter_model.safetensors", "zz.safetensors", "consolidated.safetensors")
    ),
    ("sharded", stray("model-9.safetensors"), "model-9.safetensors"),
    ("sharded", stray(WEIGHTS), WEIGHTS),
    ("sharded", index_of(shuffle), "puts it elsewhere"),
    ("sharded", index_of(lambda m: m.pop(NORM)), "leaves it out"),
    ("sharded", index_of(lambda m: m.update({GATE: "../dense/model.safetensors"})), "../dense"),
    ("sharded", index_of(lambda m: m.update({GATE: ["b"]})), "weight_map[...]"),
    ("sharded", lambda folder: edit_json(folder / INDEX, metadata=None), "metadata"),
    ("sharded", tensors(**{NORM: torch.zeros(64)}), f"{NORM} lies in "),
    ("sharded", lose_a_shard, "no .safetensors file there"),
    ("sharded", partial(lose_a_shard, kept_as=".model.safetensors"), "no .safetensors file there"),
    ("dense", write("hf_quant_config.json", {}), "hf_quant_config.json"),
    ("dense", config(configuration_files=["b"]), "configuration_files"),
    ("dense", config(transformers_weights="b"), "transformers_weights"),
    ("dense", config(speculators_config={"verifier": {}}), "speculators_config"),
    ("dense", config(architectures=["A", "LlamaForCausalLM"]), "architecture A "),
    ("dense", config(is_causal=False), "is_causal"),
    ("dense", config(qkv_bias=False), "qkv_bias"),
    ("dense", config(qkv_bias=None), "qkv_bias"),
    *(("dense", config(**QWEN2, **{k: True}), k) for k in ("attention_bias", "mlp_bias")),
    ("dense", config(sliding_window=24), "sliding_window"),
    ("dense", config(**SLIDING), "layer_types"),
    ("dense", config(**MISTRAL, **SLIDING), "layer_types"),
    ("dense", config(**MISTRAL, mlp_bias=True), "mlp_bias"),
    ("dense", config(partial_rotary_factor=0.5), "partial_rotary_factor"),
    ("dense", config(quantization_config=FP8), "quantised"),
    ("dense", config(hidden_act="gelu"), "gelu"),
    ("dense", config(**GEMMA, hidden_activation="silu"), "with gelu_pytorch_tanh alone"),
    ("dense", config(**GEMMA, rope_parameters=ROPE), "those of each kind of layer"),
    ("dense", config(**GEMMA, **SLIDING, sliding_window=None), "no window is used"),
    ("dense", config(**GEMMA, final_logit_softcapping=30.0), "final_logit_softcapping"),
    ("dense", config(**GEMMA, use_bidirectional_attention=True), "use_bidirectional_attention"),
    ("dense", config(**VISION, text_config={}), "examples/text_model.py"),
    ("dense", config(**VISION, text_config=[]), "text_config in config.json does not fit"),
    ("dense", config(**WHOLE, text_config=None), "text_config in config.json does not fit"),
    ("dense", config(rope_parameters={"full_attention": ROPE}), "those of all layers"),
    ("dense", config(query_pre_attn_scalar=48), "query_pre_attn_scalar"),
    ("dense", config(**MINISTRAL), "must state llama_4_scaling_beta"),
    ("dense", config(**MINISTRAL, rope_parameters=None), "must state llama_4_scaling_beta"),
    ("dense", config(**MINISTRAL, rope_parameters={**ROPE, **SCALED}, **SLIDING), "layer_types"),
    ("dense", rope(**SCALED), "cannot state llama_4_scaling_beta"),
    ("dense", config(num_key_value_heads=3), "num_key_value_heads = 3"),
    ("dense", without_key_value_heads, "num_key_value_heads = 8 (where config.json has none: 8)"),
    ("dense", config(hidden_size=None), "hidden_size"),
    ("dense", config(intermediate_size=95), "(95, 64)"),
    ("dense", config(num_labels=10**9), "num_labels"),
    ("dense", config(pad_token_id=10**9), "pad_token_id"),
    ("dense", config(rope_parameters={"factor": "2"}), "rope_parameters.factor"),
    ("dense", config(max_position_embeddings=1e99), "max_position_embeddings"),
    ("dense", config(per_layer_config={"0": {}}), "per_layer_config"),
    ("dense", rope(partial_rotary_factor=0.5), "partial_rotary_factor"),
    ("dense", config(rope_parameters=None, rope_scaling=PART), "partial_rotary_factor"),
    ("dense", config(rope_parameters=ROPE, rope_scaling=LINEAR), "rope_scaling beside another"),
    ("dense", config(**EXPERTS), "300,000 experts"),
    ("dense", rope(rope_type="proportional"), "proportional"),  # which one reader knows
    ("dense", rope(rope_type="dynamic", factor=2.0), "dynamic"),  # of which vLLM's table is short
    ("pruned", layers(rope_theta=2.0), "rope_theta"),
    ("pruned", config(per_layer_config={"1": {}, "01": {}}), "a layer twice"),
    ("pruned", config(per_layer_config={"one": {}}), "per_layer_config"),
    ("pruned", config(per_layer_config={"3": {}}), "per_layer_config"),
    ("pruned", layers(intermediate_size=64), "model.layers.1.mlp.gate_proj.weight"),
    ("pruned", config(dtype="float16"), "float16"),
    ("tied", own_head, HEAD),
    *(
        ("dense", content(change), WEIGHTS)
        for change in (
            lambda data: b"",
            lambda data: data[:-1],
            lambda data: data[:9] + b"\xff" + data[10:],
        )
    ),
    ("dense", renamed(WEIGHTS, "pytorch_model-00001-of-00002.bin"), "pickle"),
    ("dense", renamed(WEIGHTS, "gone"), "no weights"),
    ("dense", renamed("config.json", "gone"), "config.json"),
    ("dense", tensors(**{GATE: None}), GATE),
    ("dense", tensors(**{Q_BIAS: torch.zeros(128)}), Q_BIAS),
    ("dense", tensors(**{GATE: torch.zeros(96, 64, dtype=torch.int8)}), "I8"),
    ("dense", tensors(**{NORM: torch.ones(64).bfloat16()}), NORM),
]
