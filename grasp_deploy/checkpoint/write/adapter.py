"""A LoRA adapter of the dense model, cut by the plan of a pruned checkpoint as its weights were.

An adapter adds B·A to a matrix. The cut adapter, merged into the pruned checkpoint, gives what the
plan makes of the dense model with the adapter merged in, but for rounding. So B loses the rows that
its matrix loses. A loses the columns that its matrix loses, and takes the scales of the others.
Scales of norms are not folded into A: its matrix reads the scaled hidden state too, with columns as
they were. Weights that were refitted or recovered learnt without the adapter: for them the cut
adapter is an approximation.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, to_builtins
from torch import Tensor

from grasp_deploy.checkpoint.format.config_keys import Positive, Size
from grasp_deploy.checkpoint.format.shapes import DTYPES, ModelShape, dense_shape
from grasp_deploy.checkpoint.limits import refuse_experts
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, check_pruned, load_plan, pruned_shape
from grasp_deploy.checkpoint.read.source import ADAPTER_FILE
from grasp_deploy.checkpoint.read.validate import read_folder
from grasp_deploy.checkpoint.write.export import layer_and_tail
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import write_files
from grasp_deploy.files.json_files import read_json, typed, write_json
from grasp_deploy.files.outputs import staged_directory
from grasp_deploy.files.tensors import file_of, read_tensors
from grasp_deploy.pruning.layout import PRUNABLE_LINEARS
from grasp_deploy.pruning.slicing import cut_tensor, layer_cut
from grasp_deploy.pruning.units import UnitTable

WEIGHTS_FILE = "adapter_model.safetensors"
Pairs = dict[str, dict[str, Tensor]]  # halves A (rank, columns) and B (rows, rank) by module
LOSES = {linear.name: "B" if linear.by_rows else "A" for linear in PRUNABLE_LINEARS}
LORA_RANKS = (16, 32, 64, 128, 256, 320, 512)  # that vLLM 0.32 makes room for; the first by default
TENSOR = re.compile(r"base_model\.model\.(.+_proj)\.lora_([AB])\.weight")
# Keys of an adapter's config that do not change what its tensors do. Any other one that Lora lacks
# asks for something beside B·A, such as `use_dora`.
BYSTANDERS = {
    *("base_model_name_or_path", "revision", "task_type", "auto_mapping", "peft_version"),
    *("inference_mode", "lora_dropout", "target_modules", "exclude_modules", "layers_pattern"),
    *("layers_to_transform", "megatron_core", "qalora_group_size", "eva_config", "loftq_config"),
}
PLAIN = (
    "only plain LoRA on q, k, v, o, gate, up and down can be cut: merge the adapter into the dense "
    "model (merge_and_unload), and compress that"
)
# PEFT and vLLM read these as regular expressions, and a stranger's might never end.
Module = Annotated[str, Meta(pattern=r"\A\^?[\w.]+\Z")]


class Lora(Struct):
    """The keys of an adapter_config.json that decide what its tensors do, as PEFT names them."""

    peft_type: Literal["LORA"]
    r: Size
    lora_alpha: Size | Positive
    use_rslora: bool = False
    rank_pattern: dict[Module, Size] = {}
    alpha_pattern: dict[Module, Size | Positive] = {}
    bias: Literal["none"] = "none"
    # Other initialisations change the base model's weights wherever the adapter is loaded.
    init_lora_weights: bool | Literal["gaussian", "eva", "orthogonal"] = True

    def rank_of(self, module: str) -> int:
        """The rank of a module's adapter: of the first pattern that ends its name, else `r`."""
        for key, rank in self.rank_pattern.items():
            if f"^{module}".endswith((f".{key}", f"^{key.removeprefix('^')}")):
                return rank
        return self.r


def cut_adapter(adapter: Path, pruned: Path, output: Path) -> tuple[int, int, bool]:
    """Write an adapter of the dense model for a pruned checkpoint, as PEFT and vLLM read it.

    Returns the number of adapted matrices, the largest rank, and whether the cut is exact: False
    where weights of the checkpoint were refitted or recovered. The output appears whole or not at
    all. Raises InputError if the adapter is no plain LoRA of the plan's dense model, or the output
    exists.
    """
    if output.exists():
        raise InputError(f"the output {output} exists: name another folder, or move it away")
    pruned = pruned.parent if pruned.is_file() else pruned  # the user may name the plan in it
    plan, dense = _plan_and_dense(pruned)
    lora, pairs = read_adapter(adapter, dense)
    content = file_of(dict(cut_pairs(plan, pairs)), {"format": "pt"})
    last = sorted({module.rpartition(".")[2] for module in pairs})
    config = to_builtins(lora) | {
        "base_model_name_or_path": str(pruned),
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
        "init_lora_weights": True,
        "target_modules": last if len(last) * len(dense.layers) == len(pairs) else sorted(pairs),
    }
    with staged_directory(output, size_bytes=sum(map(len, content))) as staging:
        write_json(staging / ADAPTER_FILE, config)
        write_files({staging / WEIGHTS_FILE: content})
    # vLLM makes room for every rank that is stated, also of modules that are not there.
    return len(pairs), max([lora.r, *lora.rank_pattern.values()]), not plan.fitted


def _plan_and_dense(pruned: Path) -> tuple[Plan, ModelShape]:
    """The plan in a checkpoint, and the dense model's shape; InputError where they do not fit."""
    check_pruned(pruned)
    plan, stored = load_plan(pruned / PLAN_FILE), read_folder(pruned)
    dense = dense_shape(stored.config)
    refuse_experts(dense, "cutting an adapter")
    layers = [(layer.ffn_units, layer.num_key_value_heads) for layer in dense.layers]
    if layers != plan.dense_layers or pruned_shape(plan, dense).layers != stored.shape.layers:
        raise InputError(
            f"{pruned / PLAN_FILE} is the plan of another model than {pruned} holds: name a folder "
            "that compress made"
        )
    return plan, dense


def read_adapter(directory: Path, dense: ModelShape) -> tuple[Lora, Pairs]:
    """The config of an adapter of the dense model, and its tensors; InputError for any other."""
    path, weights = directory / ADAPTER_FILE, directory / WEIGHTS_FILE
    config = read_json(path, "name the folder of a LoRA adapter, as PEFT saves it")
    for key, value in config.items():
        if value and key not in BYSTANDERS.union(Lora.__struct_fields__):
            raise InputError(f"{path} says {key:.40} = {value!r:.40}: {PLAIN}")
    lora = typed({k: v for k, v in config.items() if v is not None}, Lora, path, PLAIN)
    tensors, _ = read_tensors(weights, "save the adapter again with PEFT, as safetensors")
    sizes = dense.tensor_shapes()
    pairs: Pairs = {}
    for name, tensor in tensors.items():
        found = TENSOR.fullmatch(name)
        module, half = found.groups() if found else ("", "")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if f"{module}.weight" not in sizes or dtype not in DTYPES:
            raise InputError(
                f"{weights} holds {name:.99} in {dtype}, which the plan's model lacks or no plan "
                f"cuts: {PLAIN}"
            )
        pairs.setdefault(module, {})[half] = tensor
    if not pairs:
        raise InputError(f"{weights} holds no tensors: {PLAIN}")
    for module, halves in pairs.items():
        rank, (rows, columns) = lora.rank_of(module), sizes[f"{module}.weight"]
        stated = {"A": (rank, columns), "B": (rows, rank)}
        held = {half: tuple(tensor.shape) for half, tensor in sorted(halves.items())}
        if held != stated:
            raise InputError(
                f"{module} has {held} in {weights}, and {stated} by {ADAPTER_FILE} and the model "
                "that the plan was made for: name an adapter of that model, or fetch it again"
            )
    return lora, pairs


def cut_pairs(plan: Plan, pairs: Pairs) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an adapter after the cut, by the names in its file."""
    units = UnitTable.of_layers(plan.dense_layers)
    for module, halves in pairs.items():
        layer, tail = layer_and_tail(module)
        cut = layer_cut(units, layer, plan.mask, plan.scales)
        for half, tensor in halves.items():
            name = f"base_model.model.{module}.lora_{half}.weight"
            made = cut_tensor(f"{tail}.weight", tensor, cut) if half == LOSES.get(tail) else tensor
            if not made.isfinite().all():
                raise InputError(f"{name} would hold numbers that are not finite: train it again")
            yield name, made
