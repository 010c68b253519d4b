"""vLLM's own source: every key of a config.json that it alone reads is refused, or known here."""

from __future__ import annotations

import ast
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from grasp_deploy.checkpoint.format.families import FOREIGN_KEYS, FOREIGN_KEYS_OF
from tests.cli.command import needs_vllm

CLASSES = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
READERS = (
    *(f"model_executor/models/{name}.py" for name in ("llama", "qwen2", "qwen3", "mistral")),
    *("config/model.py", "transformers_utils/model_arch_config_convertor.py"),
)
HOLDERS = {"config", "hf_config", "hf_text_config", "self.hf_config", "self.hf_text_config"}
# Read for other model types, for pooling or drafts alone, or without changing what is computed.
HARMLESS = {
    *("ada_rms_norm_t_cond_dim", "backbone_hidden_size", "chunk_size", "mamba_chunk_size"),
    *("is_matryoshka", "matryoshka_dimensions", "use_pad_token", "use_sep_token", "model"),
    *("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_predict", "num_layers"),
    *("model_max_length", "original_max_position_embeddings", "position_embedding_type"),
    *("is_mm_prefix_lm", "vision_n_layers", "transf_decoder", "joint_head_config"),
    *("quantization_config", "per_layer_config", "name_or_path", "model_type", "architectures"),
    *("num_mtp_modules", "_dsv4_vl_inner", "get", "get_text_config", "to_diff_dict", "head_dim"),
    *("layer_types", "max_window_layers", "__class__", "update", "dspark_target_layer_ids"),
}


@needs_vllm
@pytest.mark.parametrize("family", CLASSES)
def test_keys_that_vllm_alone_reads(family: str) -> None:
    declared = {field.name for field in fields(CLASSES[family])}
    refused = {*FOREIGN_KEYS, *FOREIGN_KEYS_OF.get(family, {})}
    biases = set() if family == "mistral" else {"attention_bias", "mlp_bias"}  # Qwen reads none
    assert sorted(keys_read() - declared - refused - HARMLESS - biases) == []


def keys_read() -> set[str]:
    """Names that vLLM reads of a model's config: `config.NAME` and `getattr(config, "NAME")`."""
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    root, found = Path(spec.origin).parent, set()
    for reader in READERS:
        for node in ast.walk(ast.parse((root / reader).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in HOLDERS:
                found.add(node.attr)
            if isinstance(node, ast.Call) and len(node.args) > 1:
                holder, name = node.args[:2]
                is_read = ast.unparse(node.func) in ("getattr", "hasattr")
                if is_read and isinstance(name, ast.Constant) and ast.unparse(holder) in HOLDERS:
                    found.add(str(name.value))
    return found
