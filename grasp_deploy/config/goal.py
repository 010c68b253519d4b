"""What a compression is for: the model, and its budget in the words of the user."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from grasp_deploy.config.option import Count, CountOrZero, HubId, option, parse_percent, study

BASE_MODEL_ID_HELP = "Hub id of MODEL for the model card. Default: MODEL itself, if it is one."
Step = Annotated[float, Meta(ge=0.001, le=0.5)]
Nats = Annotated[float, Meta(gt=0, le=100)]
Share = Annotated[float, Meta(gt=0, le=1)]
Speedup = Annotated[float, Meta(gt=1, le=1e6)]
Rate = Annotated[float, Meta(ge=1e-6, le=1e12)]
Seconds = Annotated[float, Meta(ge=1e-12, le=1e15)]
TIMES = ("speedup", "tokens_per_second", "ttft_seconds")  # budgets in time
SIZES = ("keep", "weights", "kv_per_token", "gpu_memory", *TIMES)
BOUNDS = ("max_loss", "max_perplexity_increase")


@dataclass(frozen=True)
class PhaseTimes:
    """Seconds of a decode step or a prefill, of three whole models."""

    dense_seconds: Seconds
    fewer_channels_seconds: Seconds
    fewer_groups_seconds: Seconds


@dataclass(frozen=True)
class Times:
    """Times of the dense model, and of two whose layers keep a share of their units of one kind."""

    machine: str
    engine: str
    measured_on: str
    batch: Count
    context: Count
    channels_share: Share
    groups_share: Share
    decode: PhaseTimes
    prefill: PhaseTimes


@dataclass(frozen=True)
class GoalOptions:
    """The model and its budget: a share, a size, a time, a deployment or a bound on the loss."""

    model: str
    revision: str | None = option("Branch, tag or commit of a hub model.", None, "Model")
    base_model_id: HubId | None = option(
        BASE_MODEL_ID_HELP, None, "Model", metavar="ORG/NAME", shown="help-all"
    )

    keep: Share | None = option(
        "Share of the prunable cost to keep, such as 0.6. `compress` takes several: 0.8,0.6,0.4. "
        "One kind of budget is required.",
        None,
        "Budget",
        metavar="<float>",
    )
    family: tuple[Share, ...] = field(default=(), metadata={"flag": "--keep"})
    weights: str | None = option(
        "Instead of --keep: size of all weights, such as 9GiB (cost: parameters).", None, "Budget"
    )
    kv_per_token: str | None = option(
        "Instead of --keep: KV cache of one token, such as 64KiB (cost: kv-bytes).", None, "Budget"
    )
    speedup: Speedup | None = option(
        "Instead of --keep: how many times as fast to decode, such as 1.5 (cost: latency, by times "
        "measured at --batch and --context).",
        None,
        "Budget",
    )
    tokens_per_second: Rate | None = option(
        "Instead of --keep: tokens decoded in a second, over the batch (cost: latency).",
        None,
        "Budget",
        shown="help-all",
    )
    ttft_seconds: Rate | None = option(
        "Instead of --keep: seconds to the first token (cost: latency, of the prefill).",
        None,
        "Budget",
        flag="--ttft",
        shown="help-all",
    )
    batch: Count | None = option("Sequences at a time, for --speedup.", None, "Deployment")
    max_loss: Nats | None = option(
        "Instead of --keep: the smallest model that loses at most so many nats per token against "
        "the dense one, such as 0.05, on held-out calibration text. Beside a budget: nothing is "
        "written if that loses more.",
        None,
        "Budget",
        metavar="<float>",
    )
    max_perplexity_increase: str | None = option(
        "As --max-loss, but a share of the dense model's perplexity, such as 5%.",
        None,
        "Budget",
        shown="help-all",
    )
    bound_step: Step = study("Share of the prunable cost between budgets under --max-loss.", 0.05)
    cost: str | None = option(
        "Cost model: parameters, kv-bytes, memory, latency, or your own package.module:function.",
        None,
        "Budget",
    )
    cached_tokens: CountOrZero | None = option(
        "Tokens in the deployment's KV cache (context x sequences), for --cost memory.",
        None,
        "Budget",
        shown="help-all",
    )
    gpu_memory: str | None = option(
        "Instead of --keep: memory of the GPU, such as 24GiB, that is to hold weights, --sequences "
        "of --context tokens each, and what vLLM needs (cost: memory).",
        None,
        "Deployment",
    )
    concurrent: Count | None = option(
        "Sequences served at a time, for --gpu-memory.", None, "Deployment", flag="--sequences"
    )
    context: Count | None = option(
        "Tokens of each sequence, prompt and answer, for --gpu-memory and --speedup.",
        None,
        "Deployment",
    )
    times: Times | None = field(default=None, metadata={"flag": "the measured times"})
    kv_dtype: Literal["auto", "bf16", "fp8"] = option(
        "Cached keys and values: bf16 or fp8; auto: as the weights.",
        "auto",
        "Deployment",
        shown="help-all",
    )
    gpu_memory_utilization: Share = option(
        "Share of the GPU's memory that vLLM may take.", 0.9, "Deployment", shown="help-all"
    )
    overhead: str = option(
        "Memory of vLLM's own, beside weights, cache and activations: CUDA and its graphs.",
        "1GiB",
        "Deployment",
        shown="help-all",
    )

    @property
    def cost_model(self) -> str:
        """The cost model, with the default that the kind of budget implies."""
        implied = "kv-bytes" if self.kv_per_token else "memory" if self.gpu_memory else "parameters"
        return ("latency" if self.in_time else implied) if self.cost is None else self.cost

    @property
    def in_time(self) -> bool:
        """True if the budget is a time."""
        return any(getattr(self, name) is not None for name in TIMES)

    @property
    def is_bound(self) -> bool:
        """True if the loss is bounded: by the budget, or beside one."""
        return self.max_loss is not None or self.max_perplexity_increase is not None

    @property
    def bound_nats(self) -> float | None:
        """The bound on the loss in nats per token; None without one."""
        if self.max_perplexity_increase is not None:
            return math.log1p(parse_percent(self.max_perplexity_increase))
        return self.max_loss

    @property
    def walks(self) -> bool:
        """True for several budgets, each of which starts from what a larger one has reached."""
        is_sized = any(getattr(self, name) is not None for name in SIZES)
        return bool(self.family) or (self.is_bound and not is_sized)
