"""Several processes at one compression: each holds a part of the weights and reads a part of text.

torchrun starts the processes, called ranks. Rank 0, the lead, alone writes files. A weight is
divided by rows, as FSDP2 does it, so that no process ever holds the model whole. With one process
every function returns what it was given.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig, PreTrainedModel

from grasp_deploy.checkpoint.format.families import stored_name
from grasp_deploy.checkpoint.read.loading import building, model_of, wanted_dtype
from grasp_deploy.checkpoint.read.validate import EMBEDDINGS, HEAD, StoredModel, read_folder
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.layout import attention_of, decoder_layers
from grasp_deploy.pruning.team import ALONE, Team

T = TypeVar("T")


def world() -> int:
    """The number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The number of this rank, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_lead() -> bool:
    """True in the process that writes files; always true where there are no others."""
    return rank() == 0


def is_joined() -> bool:
    """True if the process belongs to a group of ranks, even if it is the only one there."""
    return dist.is_initialized()


@contextmanager
def joined_alone() -> Iterator[None]:
    """Within the `with` block make this process a group of its own, since FSDP2 needs a group."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def by_lead(make: Callable[[], T]) -> T:
    """Run `make` on the lead; every rank returns its result, or raises its exception."""
    if world() == 1:
        return make()
    made: list[Any] = [None]
    if is_lead():
        try:
            made = [make()]
        except Exception as error:
            made = [error]
    dist.broadcast_object_list(made, src=0)
    if isinstance(made[0], Exception):
        raise made[0]
    return cast(T, made[0])


def refuse_differences(facts: dict[str, Any]) -> None:
    """Raise InputError if a rank has another value under a name than the lead."""
    found = [facts] * world()
    if len(found) > 1:
        dist.all_gather_object(found, facts)
    lead, *others = found
    for number, other in enumerate(others, start=1):
        changed = [name for name in lead | other if lead.get(name) != other.get(name)]
        if changed:
            raise InputError(
                f"process {number} has not the same {changed[-1]} as process 0: give every machine "
                "the same command, files and packages"
            )


class Ranks(Team):
    """All ranks of the group."""

    def __init__(self) -> None:
        self.size, self._rank = world(), rank()

    def deal(self, rows: Tensor) -> tuple[Tensor, float]:
        mine = rows[self._rank :: self.size]
        return (mine, len(mine) / len(rows)) if len(mine) else (rows[:1], 0.0)

    def add_up(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor)

    def take_turns(self, sums: Iterable[tuple[int, Tensor]]) -> Iterator[tuple[int, Tensor]]:
        """A rank gets two in a row (attention, MLP), and yields once all ranks have theirs."""
        waiting = []
        for place, (number, tensor) in enumerate(sums):
            owner = place // 2 % self.size
            dist.reduce(tensor, dst=owner)
            if owner == self._rank:
                waiting.append((number, tensor))
            while waiting and (place + 1) % (2 * self.size) == 0:
                yield waiting.pop()
        yield from waiting

    def part(self, rows: Tensor) -> Tensor:
        return rows.to_local() if isinstance(rows, DTensor) else rows[rows_of(len(rows))]

    def held(self, weight: Tensor) -> Tensor:
        return weight.to_local() if isinstance(weight, DTensor) else weight

    @contextmanager
    def gathered(self, module: nn.Module) -> Iterator[None]:
        assert isinstance(module, FSDPModule), "only what is divided is gathered"
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
        try:
            yield
        finally:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()

    def gather_again(self, module: nn.Module) -> None:
        assert isinstance(module, FSDPModule), "only what is divided is gathered"
        module.reshard()
        module.unshard()


def team() -> Team:
    """All ranks, or this process by itself."""
    return Ranks() if is_joined() else ALONE


def rows_of(rows: int) -> slice:
    """The slice that this rank holds of a weight with so many rows."""
    each = -(-rows // world())
    return slice(min(rank() * each, rows), min((rank() + 1) * each, rows))


def rows_from_lead(whole: Tensor | None) -> Tensor:
    """This rank's rows of a tensor on the CPU that the lead alone has."""
    sent = by_lead(lambda: whole)
    assert sent is not None, "the lead has it"
    rows = sent[rows_of(len(sent))]
    return rows if world() == 1 else rows.clone()  # so that other ranks' rows are freed


def rows_at_lead(part: Tensor) -> Tensor:
    """All rows of a tensor of which each rank has a part on the CPU; none but on the lead."""
    if world() == 1:
        return part
    parts = [part] * world() if is_lead() else None
    dist.gather_object(part, parts)
    return torch.cat(parts) if parts else part[:0].clone()  # a view would keep the part


def load_divided(
    directory: Path, device: torch.device, dtype: str, *, offload: bool = False
) -> PreTrainedModel:
    """Check a folder with `read_folder`, then load it; each rank reads its own rows of the files.

    FSDP2 divides by rows what is called on its own: a layer's attention and its MLP, the embeddings
    and the head. They are gathered for the time of a call. Every rank holds the norms, small as
    they are. With `offload` weights wait in the CPU's memory and come to the device for a call.
    All ranks must take part. Raises InputError if transformers can make nothing of config.json.
    """
    stored = read_folder(directory)
    wanted = wanted_dtype(stored.shape.dtype, device, dtype)
    with building(directory):
        model = divided(stored.config, wanted, device, offload=offload)
    _read_rows(model, stored)
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
    return begun(model, device)


def learner(
    stated: dict[str, Any],
    tensors: Iterator[tuple[str, Tensor]],
    device: torch.device,
    dtype: torch.dtype,
) -> PreTrainedModel:
    """A model that learns: of a parsed config.json, its float32 weights from the lead's `tensors`.

    Products are taken in `dtype`. Divided as by `load_divided`, but without embeddings and head:
    it is called with embedded tokens, and what it returns are hidden states.
    """
    model = divided(stated, torch.float32, device, learns_in=dtype)
    weights = dict(model.named_parameters())
    while (dealt := by_lead(lambda: next(tensors, None))) is not None:
        if (weight := weights.get(dealt[0])) is not None:
            part = team().held(weight.detach())
            part.copy_(dealt[1] if part.shape == weight.shape else dealt[1][rows_of(len(weight))])
    return begun(model, device)


def divided(
    stated: dict[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    *,
    offload: bool = False,
    learns_in: torch.dtype | None = None,
) -> PreTrainedModel:
    """The model of a parsed config.json, with empty memory for this rank's rows of its weights.

    With `learns_in` they take gradients, and products are in that dtype.
    """
    with torch.device("meta"):
        apart = {**stated, "tie_word_embeddings": False}  # the embeddings, and a head
        model = model_of(apart, dtype).requires_grad_(learns_in is not None)
    mesh = init_device_mesh(device.type, (world(),))
    policy = CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy()
    precision = MixedPrecisionPolicy(learns_in, torch.float32)
    layers, ends = decoder_layers(model), [model.model.embed_tokens, model.lm_head]
    if learns_in is not None:
        model.model.embed_tokens, model.lm_head, ends = nn.Identity(), nn.Identity(), []
    halves = [half for layer in layers for half in (attention_of(layer), layer.mlp)]
    of_layers = (part for layer in layers for part in layer.children() if part not in halves)
    norms = [*of_layers, model.model.norm]
    for module in (*halves, *ends):
        fully_shard(module, mesh=mesh, offload_policy=policy, mp_policy=precision)
    kept_whole = {parameter for norm in norms for parameter in norm.parameters()}
    fully_shard(model, mesh=mesh, offload_policy=policy, ignored_params=kept_whole)
    model.to_empty(device="cpu" if offload else device)
    for norm in norms:
        norm.to_empty(device=device)
    return model


def begun(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """Call the model once and return it: FSDP2 takes the module called first for the root."""
    with device:
        decoder = model.model
        decoder.rotary_emb = type(decoder.rotary_emb)(config=model.config)
        if (scale := getattr(decoder.embed_tokens, "scalar_embed_scale", None)) is not None:
            decoder.embed_tokens.embed_scale = torch.tensor(scale, dtype=model.dtype)  # of Gemma
    first = torch.zeros(1, 1, model.config.hidden_size, dtype=model.dtype, device=device)
    with torch.no_grad():
        model(inputs_embeds=first, use_cache=False)
    return model


@torch.no_grad()
def _read_rows(model: nn.Module, stored: StoredModel) -> None:
    """Fill this rank's parts of the weights from the files."""
    for name, parameter in model.named_parameters():
        in_file = EMBEDDINGS if name == HEAD and HEAD not in stored.files else name
        part: Tensor = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        rows = slice(None) if part is parameter else rows_of(parameter.shape[0])
        with safe_open(stored.files[in_file], "pt") as file:
            part.copy_(file.get_slice(stored_name(in_file, file.keys()))[rows])
