"""Loading a model whose weights are divided among ranks, so that no process ever holds it whole.

FSDP2 divides by rows what is called on its own: a layer's attention and its MLP, the embeddings and
the head. They are gathered for the time of a call. Norms are small, and every rank holds them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from transformers import GenerationConfig, PreTrainedModel

from grasp_deploy.checkpoint.read.loading import building, model_of, wanted_dtype
from grasp_deploy.checkpoint.read.validate import EMBEDDINGS, HEAD, StoredModel, read_folder
from grasp_deploy.pruning.layout import decoder_layers, norm_names
from grasp_deploy.pruning.ranks import part_of, rows_of, world


def load_divided(
    directory: Path, device: torch.device, dtype: str, attention: str, *, offload: bool = False
) -> PreTrainedModel:
    """Load a folder once `read_folder` has passed it; each rank reads its own rows of the files.

    With `offload` weights wait in the CPU's memory and come to the device for the time of a call.
    All ranks must take part. Raises InputError if transformers can make nothing of config.json.
    """
    stored = read_folder(directory)
    apart = {**stored.config, "tie_word_embeddings": False}  # the embeddings, and a head
    with building(directory), torch.device("meta"):
        wanted = wanted_dtype(stored.shape.dtype, device, dtype)
        model = model_of(apart, wanted, attention).requires_grad_(False)
    _divide(model, device, offload)
    _read_rows(model, stored)
    with device:
        decoder = model.model
        decoder.rotary_emb = type(decoder.rotary_emb)(config=model.config)
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
    with torch.no_grad():  # FSDP2 takes what is called first for the whole
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device), use_cache=False)
    return model


def _divide(model: PreTrainedModel, device: torch.device, offload: bool) -> None:
    """Give each rank memory for its rows of every weight, and for all norms."""
    mesh = init_device_mesh(device.type, (world(),))
    policy = CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy()
    layers = decoder_layers(model)
    norms = [model.get_submodule(name) for name in norm_names(len(layers))]
    halves = [half for layer in layers for half in (layer.self_attn, layer.mlp)]
    for module in (*halves, model.model.embed_tokens, model.lm_head):
        fully_shard(module, mesh=mesh, offload_policy=policy)
    kept_whole = {parameter for norm in norms for parameter in norm.parameters()}
    fully_shard(model, mesh=mesh, offload_policy=policy, ignored_params=kept_whole)
    model.to_empty(device="cpu" if offload else device)
    for norm in norms:
        norm.to_empty(device=device)


@torch.no_grad()
def _read_rows(model: nn.Module, stored: StoredModel) -> None:
    """Fill this rank's parts of the weights from the files."""
    for name, parameter in model.named_parameters():
        in_file = EMBEDDINGS if name == HEAD and HEAD not in stored.files else name
        part: Tensor = part_of(parameter)
        rows = slice(None) if part is parameter else rows_of(parameter.shape[0])
        with safe_open(stored.files[in_file], "pt") as file:
            part.copy_(file.get_slice(in_file)[rows])
