"""Fit a model into a GPU's memory: the prediction, and the flags that serve the result."""

import math
import shlex
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from grasp_deploy.checkpoint.footprint import KV_BYTES, Load, Room, deployment_memory
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.limits import check_positions, found_platform
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.checkpoint.read.validate import config_and_shape, refuse_quantised
from grasp_deploy.compression.budget_options import budget_for, load_of, multiples_for, room_of
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import given_words, option_fields
from grasp_deploy.config.rules import DEPLOYMENT
from grasp_deploy.errors import InputError
from grasp_deploy.fit.offers import Offer, offers

BITS = {8: "fp8", 4: "w4a16"}  # schemes of `quantize`, by bits of a weight
WANTED = (
    "fit wants a deployment: give --gpu-memory with --concurrency and --context; compress takes "
    "other budgets"
)
LEAST_KEEP = 0.5
POOR = " To keep less than half costs much quality: a smaller dense model may be the better one."


@dataclass(frozen=True)
class Fit:
    """A model and its deployment, judged before a weight is loaded.

    `impossible` says in one line why no budget fits; None where one does.
    """

    config: CompressConfig
    shape: ModelShape
    load: Load
    room: Room
    offers: list[Offer]
    impossible: str | None

    @property
    def cached_tokens(self) -> int:
        """Tokens of the load in the KV cache."""
        return self.load.cached_tokens(self.shape.windows)

    @property
    def fits(self) -> bool:
        """True if the model fits as it is."""
        return self.offers[0].fits

    def command(self, offer: Offer) -> str:
        """The shell commands that carry out an offer, up to the server."""
        options, commands = _engine_options(self.shape, self.load), []
        path, model, revision = Path(self.config.model), self.config.model, []
        if self.config.revision is not None:
            revision = ["--revision", self.config.revision]
        if path.is_file():  # commands want its folder, which a config.json elsewhere does not have
            model = str(path.parent) if path.name == "config.json" else "MODEL"
        if offer.has_fp8_cache:
            options["kv_cache_dtype"] = "fp8"
        if offer.keep is not None:
            words = given_words(_offer_config(self.config, self.shape, offer))
            commands.append(["compress", model, *words, "--output", "smaller"])
            model, revision = "smaller", []
        if offer.bits is not None:
            scheme = BITS[offer.bits]
            output = f"{Path(model).absolute().name}-{scheme}"  # of `.` too
            commands.append(["quantize", model, *revision, "--scheme", scheme, "--output", output])
            model, revision = output, []
        cache_bytes = offer.memory.kv_bytes + max(0, offer.left_bytes)
        options |= _cache_size(self.room, cache_bytes)
        commands.append(["serve", model, *revision, "--", *_flags(options)])
        return " && ".join(shlex.join(["grasp-deploy", *words]) for words in commands)

    @property
    def verdict(self) -> str:
        """The next step, in one sentence."""
        unpruned, before = ("", "") if self.shape.pruned else (" unpruned,", " before you prune")
        if self.fits:
            command = self.command(self.offers[0])
            return f"{self.config.model} fits as it is: serve it{unpruned} by {command}"
        fitting = [offer for offer in self.offers if offer.fits]
        if any(offer.keep is None for offer in fitting):
            return f"Quantising is enough: see what it costs on text of yours{before}."
        told = "Quantising alone is not enough."
        if self.impossible is not None:
            which = "it fits only if it is pruned and quantised" if fitting else "no budget fits"
            told = f"{which.capitalize()}; pruned alone, {self.impossible}."
        kept = max((offer.keep for offer in fitting if offer.keep is not None), default=1.0)
        return told + POOR * (kept < LEAST_KEEP)

    def as_dict(self) -> dict[str, Any]:
        """The record: sizes are whole bytes."""
        return {
            "model": self.config.model,
            "fits": self.fits,
            "verdict": self.verdict,
            "impossible": self.impossible,
            "gpu_memory_bytes": self.room.memory_bytes,
            "usable_bytes": self.room.usable_bytes,
            "load": asdict(self.load) | {"cached_tokens": self.cached_tokens},
            "offers": [o.as_dict() | {"command": self.command(o)} for o in self.offers],
        }


def predict_fit(config: CompressConfig) -> Fit:
    """Judge a deployment without loading weights; InputError for one that the model cannot have."""
    if config.gpu_memory is None:
        raise InputError(WANTED)
    stated, shape = config_and_shape(resolve_config(config.model, config.revision))
    refuse_quantised(shape)
    check_positions(load_of(config).context_tokens, stated, "--context")
    load, room = load_of(config), room_of(config)
    rows = offers(shape, load, room, config.targets, multiples_for(config, shape))
    asked = {o: _offer_config(config, shape, o) for o in rows if o.keep is not None}
    rows = [o for o in rows if o not in asked or not _refusal(asked[o], shape)]
    impossible = None if rows[0].fits else _refusal(config, shape)
    return Fit(config, shape, load, room, rows, impossible)


def _offer_config(config: CompressConfig, shape: ModelShape, offer: Offer) -> CompressConfig:
    """The compression of an offer: the deployment's own, or to a share before it is quantised.

    The cost then weighs weights against an FP8 cache at their sizes once quantised.
    """
    assert offer.keep is not None, "asked of an offer that prunes"
    if offer.bits is None:
        return config
    bits: float = offer.bits
    if offer.group_columns:
        bits += 8 * shape.bytes_per_parameter / offer.group_columns
    tokens = math.ceil(load_of(config).cached_tokens(shape.windows) * 8 / bits)
    defaults = option_fields(config)
    deployment: dict[str, Any] = {n: defaults[n].default for n in ("gpu_memory", *DEPLOYMENT)}
    share = math.floor(1000 * offer.keep) / 1000
    return replace(config, **deployment, keep=share, cost="memory", cached_tokens=tokens)


def _refusal(config: CompressConfig, shape: ModelShape) -> str | None:
    """Why `compress` takes no such budget, in the multiples that layers keep; None if it does."""
    try:
        budget_for(config, shape, torch.device("cpu"))
    except InputError as error:
        return str(error)
    return None


def serve_flags(shape: ModelShape, load: Load, room: Room) -> list[str]:
    """The flags of `vllm serve` for a load in the memory that it was fitted to."""
    memory = deployment_memory(shape, load, room.overhead_bytes)
    size = _cache_size(room, room.usable_bytes - (memory.total_bytes - memory.kv_bytes))
    return _flags({**_engine_options(shape, load), **size})


def _cache_size(room: Room, cache_bytes: int) -> dict[str, Any]:
    """vLLM's own argument that sizes the cache by the room."""
    if found_platform() == "cpu":  # where a share of the memory means something else
        return {"kv_cache_memory_bytes": cache_bytes}
    return {"gpu_memory_utilization": room.utilization}


def _engine_options(shape: ModelShape, load: Load) -> dict[str, Any]:
    """vLLM's own arguments for a load."""
    options: dict[str, Any] = {
        "max_model_len": load.context_tokens,
        "max_num_seqs": load.sequences,
        "max_num_batched_tokens": load.step_tokens,
    }
    width = load.kv_bytes_per_value
    if width is not None and width != shape.bytes_per_parameter:
        options["kv_cache_dtype"] = "fp8" if width == KV_BYTES["fp8"] else "bfloat16"
    return options


def _flags(options: dict[str, Any]) -> list[str]:
    pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in options.items())
    return list(chain(*pairs))
