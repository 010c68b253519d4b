"""Files beside the weights that decide how they are used: tokenizer, configs, remote code."""

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


def write_sidecar_files(directory: Path, base: Path, plan: Plan, config: dict[str, Any]) -> None:
    """Write tokenizer, configs and remote code of a checkpoint into `directory`."""
    for name, path in {**carried_over(base), **remote_code()}.items():
        shutil.copyfile(path, directory / name)
    for name, record in configs(plan, config).items():
        write_json(directory / name, record)


def carried_over(directory: Path) -> dict[str, Path]:
    """The files that a checkpoint takes over unchanged from its base model, by name."""
    paths = (path for pattern in CARRIED_OVER for path in sorted(directory.glob(pattern)))
    return {path.name: path for path in paths if path.is_file()}


def remote_code() -> dict[str, Path]:
    """The model code that every checkpoint carries for loading without this package, by name."""
    return {name: Path(package.__file__).with_name(name) for name in REMOTE_CODE_FILES}


def configs(plan: Plan, config: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The configs of a checkpoint by file name; without `config` the options alone."""
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
