"""The options of a compression: every name, type, bound, default and help text."""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from grasp_deploy.config.option import (
    DEVICE_HELP,
    DTYPE_HELP,
    Count,
    CountOrZero,
    HubId,
    Length,
    Seed,
    option,
    parse_percent,
    study,
)

Criterion = Literal[  # one-shot scores; a test compares them with `pruning.criteria`
    "random",
    "magnitude",
    "taylor-vector",
    "taylor-element",
    "taylor-gate",
    "flap",
    "wanda-structured",
    "obs",
]
CRITERIA: tuple[str, ...] = typing.get_args(Criterion)
LEARNT_METHODS = ("grasp", "gumbel-topk")
BASE_MODEL_ID_HELP = "Hub id of MODEL for the model card. Default: MODEL itself, if it is one."
Factor = Annotated[float, Meta(ge=1e-6, le=1e6)]
Step = Annotated[float, Meta(ge=0.001, le=0.5)]
Nats = Annotated[float, Meta(gt=0, le=100)]
Share = Annotated[float, Meta(gt=0, le=1)]
Speedup = Annotated[float, Meta(gt=1, le=1e6)]
Rate = Annotated[float, Meta(ge=1e-6, le=1e12)]
TIMES = ("speedup", "tokens_per_second", "ttft_seconds")  # budgets in time
SIZES = ("keep", "weights", "kv_per_token", "gpu_memory", *TIMES)
BOUNDS = ("max_loss", "max_perplexity_increase")


@dataclass(frozen=True)
class CompressOptions:
    """All that decides a compressed model, unchecked: see `CompressConfig`.

    Options of studies are given by `--set NAME=VALUE` on the command line.
    """

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
        "Instead of --keep: how many times as fast to decode, such as 1.5 (cost: latency, with "
        "--table, --batch and --context).",
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
    table: str | None = option(
        "Measured times that `grasp-deploy table` wrote, for --cost latency.",
        None,
        "Deployment",
        metavar="FILE",
    )
    batch: Count | None = option("Sequences at a time of the table's times.", None, "Deployment")
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
    bound_step: Step = study("Share of the prunable cost in each step under --max-loss.", 0.05)
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
        "Tokens of each sequence, prompt and answer, for --gpu-memory and --table.",
        None,
        "Deployment",
    )
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
    kv_cost_factor: Factor = study("Multiplier on the cost of KV groups.", 1.0)
    targets: Literal["both", "ffn", "kv"] = study(
        "Units that may be removed: both, ffn or kv.", "both"
    )

    ffn_multiple: Count = option(
        "Keep a multiple of this many FFN channels in each layer.", 1, "Shapes"
    )
    kv_multiple: Count = option(
        "Keep a multiple of this many KV groups in each layer.", 1, "Shapes"
    )
    tensor_parallel: Count = option(
        "Tensor-parallel size that must divide every layer; it enters both multiples.", 1, "Shapes"
    )

    calibration: tuple[str, ...] = option(
        "Text or chats: wikitext2, ptb, c4, a local file or hf:NAME[:CONFIG]. May be repeated. "
        "Half of the sequences are what the model writes itself, unless self=WEIGHT or "
        "self:PROMPTS=WEIGHT says how much; self=0: none.",
        ("self",),
        "Calibration",
        metavar="TEXT[@SPLIT][=WEIGHT]",
    )
    calibration_split: str | None = option(
        "Rows of each text that names none, such as 'train[:900]'. Default: train.",
        None,
        "Calibration",
        shown="help-all",
    )
    calibration_column: str | None = option(
        "Column that holds the text, or chats as lists of messages.",
        None,
        "Calibration",
        shown="help-all",
    )
    own_temperature: Factor = study("Temperature at which the model writes its own text.", 1.0)
    sequences: Annotated[int, Meta(ge=1, le=10**6)] = option(
        "Number of calibration sequences.", 1024, "Calibration", flag="--calibration-sequences"
    )
    sequence_length: Length = option("Tokens in a calibration sequence.", 512, "Calibration")

    method: Literal["progressive", "grasp", "gumbel-topk", Criterion] = option(
        "How units are chosen: grasp (gates learnt under the budget, after pruning in rounds), "
        f"progressive (rounds alone), gumbel-topk, or one-shot by a criterion: "
        f"{', '.join(CRITERIA)}.",
        "grasp",
        "Method",
    )
    start: Literal["progressive", "equal", Criterion] = study(
        "Initial scores of learnt gates: progressive (pruning in rounds), equal, or a criterion.",
        "progressive",
    )
    rounds: Count = study("Rounds of progressive pruning.", 5)
    round_criterion: Criterion = study("Criterion used in each round.", "obs")
    criterion_sequences: Count = study("Sequences that a criterion reads.", 64)
    allocation: Literal["global", "layerwise", "owl"] = study(
        "Allocation of the budget to layers under a one-shot criterion: global (one ranking), "
        "layerwise (equal shares) or owl (by outliers).",
        "global",
    )
    compensation: bool = study(
        "Refit the kept output columns to the dense model's hidden states by least squares.", True
    )
    compensation_sequences: Count = study("Sequences that compensation reads.", 256)
    ridge: Factor = study("Ridge penalty towards the original weights.", 0.01)

    epochs: Count = study("Passes over the sequences to learn the gates.", 1)
    gate_sequences: Count = study("Sequences that gates are learnt from.", 64)
    learning_rate: Factor = study("AdamW learning rate of scores and scales.", 0.01)
    learning_rate_schedule: Literal["constant", "cosine"] = study(
        "constant, or cosine decay to 0.", "cosine"
    )
    gate_site: Literal["outputs", "keys-values"] = study(
        "Where a KV group is gated while learning: the outputs of its heads, or its keys-values.",
        "outputs",
    )
    temperature: Factor = study("Temperature of the gates: p = sigmoid(score / temperature).", 1.5)
    batch_size: Count = study("Sequences in a step.", 1)
    scale_epochs: CountOrZero = study(
        "Passes over the sequences to learn the scales; 0: no scales.", 1
    )
    norm_scales: bool = study(
        "Learn a scale for each hidden channel behind each norm too, and fold it into the norm.",
        True,
    )
    objective: Literal["text", "distillation"] = study(
        "Loss that gates and scales are learnt by: text (next token) or distillation (divergence "
        "from the dense model).",
        "text",
    )
    ranking: Literal["auto", "score", "score-per-cost"] = study(
        "Rank units by score or score-per-cost; auto: per cost for criteria whose scores are "
        "losses or sums over weights.",
        "auto",
    )
    select: Literal["best", "last", "average"] = study(
        "Mask to keep: best (on held-out sequences), last, or average (mean scores of the last "
        "quarter of the steps). Scales likewise.",
        "best",
    )
    swap_groups: CountOrZero = study(
        "KV groups nearest to the cut, so many kept and so many removed ones, that change sides "
        "one by one where that lowers the held-out loss.",
        0,
    )
    seed: Seed = option("Seed of the order of sequences and of ties.", 0, "Running")
    device: str = option(DEVICE_HELP, "auto", "Running")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(DTYPE_HELP, "auto", "Running")
    attention: str = study("Attention implementation of transformers.", "sdpa")
    gradient_checkpointing: bool = option(
        "Recompute activations in the backward pass to save memory.", False, "Running"
    )

    @property
    def cost_model(self) -> str:
        """The cost model, with the default that the kind of budget implies."""
        implied = "kv-bytes" if self.kv_per_token else "memory" if self.gpu_memory else "parameters"
        return self.cost or ("latency" if self.in_time else implied)

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
        """True if budgets fall one by one, each from what the one before has reached."""
        is_sized = any(getattr(self, name) is not None for name in SIZES)
        return bool(self.family) or (self.is_bound and not is_sized)

    @property
    def effective_multiples(self) -> tuple[int, int]:
        """Multiples of FFN channels and of KV groups, tensor parallelism included."""
        size = self.tensor_parallel
        return math.lcm(self.ffn_multiple, size), math.lcm(self.kv_multiple, size)

    @property
    def learns(self) -> bool:
        """True if gates are learnt; False if units are chosen in rounds or by one criterion."""
        return self.method in LEARNT_METHODS

    @property
    def first_scores(self) -> str:
        """The source of the first scores: "progressive", "equal" or a criterion."""
        return self.start if self.learns else self.method

    @property
    def cuts_in_rounds(self) -> bool:
        """True if units are removed in rounds, before any gates are learnt."""
        return self.first_scores == "progressive"
