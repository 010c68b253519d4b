"""A folder as llm-compressor leaves it: int8 weights with a scale per row, int8 activations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**INT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**INT8, "strategy": "token", "dynamic": True},
        }
    },
}


def quantise(source: Path, folder: Path) -> None:
    """Copy a model of one weight file, with the matrices of its layers in int8."""
    shutil.copytree(source, folder)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("proj.weight"):
            tensors[name] = tensor
            continue
        scale = tensor.float().abs().amax(dim=1, keepdim=True) / 127
        tensors[name] = (tensor / scale).round().to(torch.int8)
        tensors[f"{name}_scale"] = scale.to(tensor.dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = QUANTIZATION
    (folder / "config.json").write_text(json.dumps(config))
