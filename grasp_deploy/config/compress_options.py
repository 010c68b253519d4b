"""The options of a compression: every name, type, bound, default and help text."""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta

from grasp_deploy.config.option import (
    DEVICE_HELP,
    DTYPE_HELP,
    Count,
    CountOrZero,
    Dtype,
    HubId,
    Length,
    Seed,
    option,
    study,
)
from grasp_deploy.files.sizes import parse_count

SIZES = ("keep", "weights", "kv_per_token", "gpu_memory", "speedup")
COST_OF_BUDGET = {
    "weights": "parameters",
    "kv_per_token": "kv-bytes",
    "gpu_memory": "memory",
    "speedup": "latency",
}
METHODS = ("grasp", "progressive")
STAGE_PARTS = {"criterion": 8, "compensation": 2}  # a stage reads one of so many parts of the text
FEWEST_SEQUENCES = 16  # that a stage reads, where there are so many
GATE_SEQUENCES = 128  # at most: more steps drive scores past the masks near to the rounds'
ALL_ROUNDS_SHARE = 0.4  # of the cost; where all rounds together remove less, fewer do as well
WIDEST, NARROWEST = 128, 8  # multiples of widths that matrix kernels like
Factor = Annotated[float, Meta(ge=1e-6, le=1e6)]
Nats = Annotated[float, Meta(gt=0, le=100)]
Seconds = Annotated[float, Meta(ge=1e-12, le=1e15)]
Sequences = Annotated[int, Meta(ge=1, le=10**6)]
Share = Annotated[float, Meta(gt=0, le=1)]
Speedup = Annotated[float, Meta(gt=1, le=1e6)]
Step = Annotated[float, Meta(ge=0.001, le=0.5)]
budget = partial(option, default=None, panel="Budget")
deployment = partial(option, default=None, panel="Deployment")
shape = partial(option, panel="Shapes")
text = partial(option, default=None, panel="Calibration")
running = partial(option, panel="Running")


@dataclass(frozen=True)
class Times:
    """Seconds of a decode step: dense, with a share of FFN channels, with a share of KV groups."""

    machine: str
    engine: str
    measured_on: str
    batch: Count
    context: Count
    channels_share: Share
    groups_share: Share
    dense_seconds: Seconds
    fewer_channels_seconds: Seconds
    fewer_groups_seconds: Seconds


@dataclass(frozen=True)
class CompressOptions:
    """All that decides a compressed model, unchecked: see `CompressConfig`.

    Options of studies are given by `--set NAME=VALUE` on the command line.
    """

    model: str
    revision: str | None = option(
        "Branch, tag or commit of a hub model.", None, "Model", shown="help-all"
    )
    base_model_id: HubId | None = option(
        "Hub id of MODEL for the model card. Default: MODEL itself, if it is one.",
        None,
        "Model",
        metavar="ORG/NAME",
        shown="help-all",
    )

    keep: Share | None = budget(
        "Share of the prunable cost to keep, such as 0.6. `compress` takes several: 0.8,0.6,0.4. "
        "One kind of budget is required."
    )
    family: tuple[Share, ...] = field(default=(), metadata={"flag": "--keep"})
    weights: str | None = budget(
        "Instead of --keep: size of all weights, such as 9GiB (cost: parameters)."
    )
    kv_per_token: str | None = budget(
        "Instead of --keep: KV cache of one token, such as 64KiB (cost: kv-bytes)."
    )
    speedup: Speedup | None = budget(
        "Instead of --keep: how many times as fast to decode, such as 1.5 (cost: latency, by times "
        "measured at --batch and --context)."
    )
    batch: Count | None = deployment("Sequences at a time, for --speedup.")
    max_loss: Nats | None = budget(
        "Instead of --keep: the smallest model that loses at most so many nats per token against "
        "the dense one, such as 0.05, on held-out calibration text. Beside a budget: nothing is "
        "written if that loses more."
    )
    bound_step: Step = study("Share of the prunable cost between budgets under --max-loss.", 0.05)
    cost: str | None = budget(
        "Cost model: parameters, kv-bytes, memory, latency, or your own package.module:function.",
        shown="help-all",
    )
    cached_tokens: CountOrZero | None = budget(
        "Tokens in the KV cache (context x concurrency), for --cost memory.", shown="help-all"
    )
    gpu_memory: str | None = deployment(
        "A budget: memory of the GPU that serves, such as 24GiB: weights, --concurrency "
        "sequences of --context tokens, and what vLLM needs (cost: memory)."
    )
    concurrency: Count | None = deployment("Sequences served at a time, for --gpu-memory.")
    context: Count | None = deployment(
        "Tokens of each sequence, prompt and answer, for --gpu-memory and --speedup."
    )
    times: Times | None = field(default=None, metadata={"flag": "the measured times"})
    kv_dtype: Literal["auto", "bf16", "fp8"] = deployment(
        "Cached values: bf16 or fp8; auto: as the weights.", default="auto", shown="help-all"
    )
    gpu_memory_utilization: Share = deployment(
        "Share of the GPU's memory that vLLM may take.", default=0.9, shown="help-all"
    )
    overhead: str = deployment(
        "Memory of vLLM's own, CUDA and its graphs included.", default="1GiB", shown="help-all"
    )

    targets: Literal["both", "ffn", "kv"] = study("Units that may go: both, ffn or kv.", "both")
    ffn_multiple: Count | None = shape(
        "Keep a multiple of this many FFN channels in each layer. Default: the largest power of 2 "
        "that divides the model's width 16 times or more, at most 128; 1 for narrow models.",
        default=None,
        shown="help-all",
    )
    kv_multiple: Count = shape(
        "Keep a multiple of this many KV groups in each layer.", 1, shown="help-all"
    )
    tensor_parallel: Count = shape(
        "Tensor-parallel size that must divide every layer; it enters both multiples.", 1
    )

    calibration: tuple[str, ...] = text(
        "Text or chats: wikitext2, ptb, c4, a local file or hf:NAME[:CONFIG]. May be repeated. "
        "Half of the sequences are generated by the model; self=WEIGHT or self:PROMPTS=WEIGHT "
        "changes that, and self=0 turns it off.",
        default=("self",),
        metavar="TEXT[@SPLIT][=WEIGHT]",
    )
    calibration_split: str | None = text(
        "Rows of texts that name none, such as 'train[:900]'. Default: train.", shown="help-all"
    )
    calibration_column: str | None = text(
        "Column that holds the text, or chats as lists of messages.", shown="help-all"
    )
    sequences: Sequences = text(
        "Number of calibration sequences; time and quality of all but recovery follow it.",
        default=512,
        flag="--calibration-sequences",
    )
    sequence_length: Length = text("Tokens in a calibration sequence.", default=512)

    method: str = option(
        "How units are chosen: grasp (gates learnt under the budget, after pruning in rounds), "
        "progressive (rounds alone), or your own package.module:function.",
        "grasp",
        "Method",
    )
    rounds: Count = study(
        "Rounds of pruning to 0.6 of the cost or less; in proportion fewer to a larger budget.", 5
    )
    compensation: bool = study(
        "Refit kept output columns to the dense model's hidden states by least squares.", True
    )
    ridge: Factor = study("Tokens for each input that the dense weights weigh in the refit.", 16.0)
    learning_rate: Factor = study("AdamW learning rate of scores and scales.", 0.01)
    temperature: Factor = study("Temperature of the gates: p = sigmoid(score / temperature).", 1.5)
    batch_size: Count = study("Sequences in a step.", 1)
    scale_epochs: CountOrZero = study("Passes over the text to learn scales; 0: none.", 1)
    objective: Literal["dense", "text"] = study(
        "What gates and scales learn: the dense model's predictions, or the text itself.", "dense"
    )
    norm_scales: bool = study("Learn scales of hidden channels behind norms too.", True)
    recover: Count | None = option(
        "Tokens of recovery, such as 2M: the pruned weights learn the dense model's predictions. "
        "Default: none.",
        None,
        "Recovery",
        metavar="TOKENS",
        parse=parse_count,
    )
    seed: Seed = running("Seed of the order of sequences and of ties.", 0, shown="help-all")
    device: str = running(DEVICE_HELP, "auto")
    dtype: Dtype = running(DTYPE_HELP, "auto", shown="help-all")
    gradient_checkpointing: bool = running(
        "Recompute activations in the backward pass to save memory.", False, shown="help-all"
    )

    @property
    def cost_model(self) -> str:
        """The cost model, with the default that the kind of budget implies."""
        implied = (cost for name, cost in COST_OF_BUDGET.items() if getattr(self, name) is not None)
        return next(implied, "parameters") if self.cost is None else self.cost

    @property
    def walks(self) -> bool:
        """True if several budgets are run, each from the result of a larger one."""
        is_sized = any(getattr(self, name) is not None for name in SIZES)
        return bool(self.family) or (self.max_loss is not None and not is_sized)

    def multiples(self, channels: int = 1) -> tuple[int, int]:
        """Multiples of FFN channels and of KV groups, tensor parallelism included.

        `channels` are those of a layer of the dense model, which decide the default.
        """
        ffn = aligned_width(channels) if self.ffn_multiple is None else self.ffn_multiple
        size = self.tensor_parallel
        return math.lcm(ffn, size), math.lcm(self.kv_multiple, size)

    def sequences_of(self, stage: str) -> int:
        """Sequences that a stage may read: its share of all."""
        return max(FEWEST_SEQUENCES, math.ceil(self.sequences / STAGE_PARTS[stage]))

    @property
    def learns(self) -> bool:
        """True if gates are learnt, behind rounds."""
        return self.method == "grasp"

    def rounds_for(self, removed: float) -> int:
        """Rounds that remove a share of the prunable cost: fewer than all if it is small."""
        return min(self.rounds, max(1, math.ceil(self.rounds * removed / ALL_ROUNDS_SHARE - 1e-9)))

    @property
    def cuts_in_rounds(self) -> bool:
        """True if units are removed in rounds; False if a function of the user's scores them."""
        return self.method in METHODS


def aligned_width(channels: int) -> int:
    """The multiple of FFN channels that kernels like and that leaves 16 steps or more, else 1."""
    width = math.gcd(channels, WIDEST)
    while width > channels / 16:
        width //= 2
    return width if width >= NARROWEST else 1
