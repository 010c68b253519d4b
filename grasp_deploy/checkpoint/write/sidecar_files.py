"""Files beside the weights that decide how they are used: tokenizer, configs, remote code."""

import shutil
from pathlib import Path
from typing import Any

import grasp_deploy.checkpoint.format as package
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape
from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.read.loading import tried_tokenizer
from grasp_deploy.checkpoint.read.source import CARRIED_OVER, NAMED_TEMPLATES, REMOTE_CODE_FILES
from grasp_deploy.checkpoint.read.validate import holds_tokenizer
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import read_json, write_json

REMOTE_CODE = {name: Path(package.__file__).with_name(name) for name in REMOTE_CODE_FILES}
TOKENIZER_CONFIG = "tokenizer_config.json"


def carry_over(directory: Path, base: Path) -> None:
    """Write the base model's files beside a config.json; InputError if the tokenizer changes."""
    files = carried_over(base)
    are_named = any("/" in name for name in files)  # templates: the tokenizer's config holds them
    for name, path in files.items():
        if not (are_named and path.suffix == ".jinja"):
            shutil.copyfile(path, directory / name)
    if holds_tokenizer(base):
        _, wanted = tried_tokenizer(base)
        record = tokenizer_config(base, wanted)
        record.pop("auto_map", None)  # the code that it names stays behind
        write_json(directory / TOKENIZER_CONFIG, record)
        if tried_tokenizer(directory)[1] != wanted:
            raise InputError(
                f"the tokenizer of {base} would be another one in the output: save it again, "
                f'with AutoTokenizer.from_pretrained("{base}").save_pretrained("{base}")'
            )


def write_own_files(directory: Path, plan: Plan, config: dict[str, Any]) -> None:
    """Write what does not come from the base model's folder: configs and remote code."""
    for name, path in REMOTE_CODE.items():  # for loading without this package
        shutil.copyfile(path, directory / name)
    write_json(directory / "config.json", config)
    write_json(directory / "compress_config.json", plan.provenance["config"])


def tokenizer_config(directory: Path, traits: dict[str, Any]) -> dict[str, Any]:
    """A folder's tokenizer_config.json, with the class and the named templates of `traits`.

    The class that it names may be wrong: transformers corrects it by the type of the model, and
    does not know our types. Named templates, which lie in a folder of their own, are put into it.
    """
    path = directory / TOKENIZER_CONFIG
    record = read_json(path, "fetch the model again") if path.exists() else {}
    if isinstance(named := traits.get("templates"), dict):
        record["chat_template"] = [{"name": n, "template": text} for n, text in named.items()]
    return {**record, "tokenizer_class": traits.get("class")}


def carried_over(directory: Path) -> dict[str, Path]:
    """The files that a checkpoint takes over from its base model, by name in its folder.

    Raises InputError for a link out of the folder, which could publish a file of this machine.
    Links of the hub's cache to its own `blobs` are allowed.
    """
    place, patterns = directory.resolve(), (*CARRIED_OVER, NAMED_TEMPLATES)
    paths = (path for pattern in patterns for path in sorted(directory.glob(pattern)))
    kept = {str(path.relative_to(directory)): path for path in paths if path.is_file()}
    for path in kept.values():
        target = path.resolve()
        if not any(map(target.is_relative_to, (place, place.parent.parent / "blobs"))):
            raise InputError(f"{path} links to a file outside of its folder: put a copy there")
    return kept


def pruned_config(config: dict[str, Any], pruned: ModelShape) -> dict[str, Any]:
    """config.json of the checkpoint: the dense one with its class renamed and sizes by layer."""
    family = pruned.family
    stem = f"Grasp{family.stem}"
    left_out = {"torch_dtype", "_name_or_path"}
    if family.model_type == "mistral" and str(config.get("transformers_version", "5")) < "5":
        left_out.add("transformers_version")  # by an old one only a Mistral is mended
    kept = {key: value for key, value in config.items() if key not in left_out}
    dense_layers = model_shape(config).layers
    return {
        **_with_float_factors(kept),
        "architectures": [family.pruned_architecture],
        "auto_map": {
            "AutoConfig": f"configuration_grasp.{stem}Config",
            "AutoModel": f"modeling_grasp.{stem}Model",
            "AutoModelForCausalLM": f"modeling_grasp.{stem}ForCausalLM",
        },
        "dtype": pruned.dtype,
        "head_dim": pruned.head_dim,
        "model_type": family.pruned_model_type,
        "num_key_value_heads": max(layer.num_key_value_heads for layer in dense_layers),
        "per_layer_config": {str(i): layer.stated for i, layer in enumerate(pruned.layers)},
    }


def _with_float_factors(stated: dict[str, Any]) -> dict[str, Any]:
    """A config with each `factor` of rotary positions a float: vLLM dies of a whole number."""
    floats = {"factor": float(stated["factor"])} if stated.get("factor") else {}
    inner = {k: _with_float_factors(v) for k, v in stated.items() if isinstance(v, dict)}
    return {**stated, **inner, **floats}
