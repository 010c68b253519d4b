"""What lies beside the weights and decides how they are used: tokenizer, configs and code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import grasp_deploy.checkpoint.format as package
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape
from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.read.source import CARRIED_OVER
from grasp_deploy.files.json_files import write_json

REMOTE_CODE_FILES = ("configuration_grasp.py", "modeling_grasp.py")


def write_companions(directory: Path, base: Path, plan: Plan, config: dict[str, Any]) -> None:
    """Write the files of a checkpoint that base model, release and plan give beside the weights."""
    for name, path in {**carried_over(base), **travelling()}.items():
        shutil.copyfile(path, directory / name)
    for name, record in configs(plan, config).items():
        write_json(directory / name, record)


def carried_over(directory: Path) -> dict[str, Path]:
    """The files of a model folder that a checkpoint has as they are in its base model, by name."""
    paths = (path for pattern in CARRIED_OVER for path in sorted(directory.glob(pattern)))
    return {path.name: path for path in paths if path.is_file()}


def travelling() -> dict[str, Path]:
    """The package's own files that travel with a checkpoint, by name."""
    return {name: Path(package.__file__).with_name(name) for name in REMOTE_CODE_FILES}


def configs(plan: Plan, config: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The two configs of a checkpoint by file name; the model's own where it is known."""
    options = {"compress_config.json": plan.provenance["config"]}
    return options if config is None else {"config.json": config, **options}


def pruned_config(config: dict[str, Any], pruned: ModelShape) -> dict[str, Any]:
    """config.json of the checkpoint: the dense one with its class renamed and its layers' sizes."""
    family = pruned.family
    stem = f"Grasp{family.stem}"
    kept = {
        key: value for key, value in config.items() if key not in ("torch_dtype", "_name_or_path")
    }
    dense_layer = model_shape(config).layers[0]
    return {
        **kept,
        "architectures": [family.pruned_architecture],
        "auto_map": {
            "AutoConfig": f"configuration_grasp.{stem}Config",
            "AutoModel": f"modeling_grasp.{stem}Model",
            "AutoModelForCausalLM": f"modeling_grasp.{stem}ForCausalLM",
        },
        "dtype": pruned.dtype,
        "head_dim": pruned.head_dim,
        "model_type": family.pruned_model_type,
        "num_key_value_heads": dense_layer.num_key_value_heads,
        "per_layer_config": {str(i): vars(layer) for i, layer in enumerate(pruned.layers)},
    }
