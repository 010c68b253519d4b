"""The options of a compression: every name, type, bound, default and help text."""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from grasp_deploy.config.goal import GoalOptions
from grasp_deploy.config.option import (
    DEVICE_HELP,
    DTYPE_HELP,
    Count,
    CountOrZero,
    Length,
    Seed,
    option,
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
STAGE_PARTS = {"criterion": 8, "gate": 8, "compensation": 2}  # of all sequences one part
FEWEST_SEQUENCES = 16  # of a stage, where there are so many
WIDEST, NARROWEST = 128, 8  # multiples of widths that matrix kernels like
Factor = Annotated[float, Meta(ge=1e-6, le=1e6)]


@dataclass(frozen=True)
class CompressOptions(GoalOptions):
    """All that decides a compressed model, unchecked: see `CompressConfig`.

    Options of studies are given by `--set NAME=VALUE` on the command line.
    """

    kv_cost_factor: Factor = study("Multiplier on the cost of KV groups.", 1.0)
    targets: Literal["both", "ffn", "kv"] = study(
        "Units that may be removed: both, ffn or kv.", "both"
    )

    ffn_multiple: Count | None = option(
        "Keep a multiple of this many FFN channels in each layer. Default: the largest power of 2 "
        "that divides the model's width 16 times or more, at most 128; 1 for narrow models.",
        None,
        "Shapes",
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
        "Number of calibration sequences; time and quality of every stage follow it.",
        512,
        "Calibration",
        flag="--calibration-sequences",
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
    criterion_sequences: Count | None = study(
        "Sequences that a criterion reads. Default: an eighth of all, at least 16.", None
    )
    allocation: Literal["global", "layerwise", "owl"] = study(
        "Allocation of the budget to layers under a one-shot criterion: global (one ranking), "
        "layerwise (equal shares) or owl (by outliers).",
        "global",
    )
    compensation: bool = study(
        "Refit the kept output columns to the dense model's hidden states by least squares.", True
    )
    compensation_sequences: Count | None = study(
        "Sequences that compensation reads. Default: half of all, at least 16.", None
    )
    ridge: Factor = study(
        "Tokens per input for which the original weights count in least squares.", 16.0
    )

    epochs: Count = study("Passes over the sequences to learn the gates.", 1)
    gate_sequences: Count | None = study(
        "Sequences that gates are learnt from. Default: an eighth of all, at least 16.", None
    )
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
    seed: Seed = option("Seed of the order of sequences and of ties.", 0, "Running")
    device: str = option(DEVICE_HELP, "auto", "Running")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(DTYPE_HELP, "auto", "Running")
    attention: str = study("Attention implementation of transformers.", "sdpa")
    gradient_checkpointing: bool = option(
        "Recompute activations in the backward pass to save memory.", False, "Running"
    )

    def multiples(self, channels: int = 1) -> tuple[int, int]:
        """Multiples of FFN channels and of KV groups, tensor parallelism included.

        `channels` are those of a layer of the dense model, which decide the default.
        """
        ffn = aligned_width(channels) if self.ffn_multiple is None else self.ffn_multiple
        size = self.tensor_parallel
        return math.lcm(ffn, size), math.lcm(self.kv_multiple, size)

    def sequences_of(self, stage: str) -> int:
        """Sequences that a stage may read: what its option says, or its share of all."""
        asked: int | None = getattr(self, f"{stage}_sequences")
        share = math.ceil(self.sequences / STAGE_PARTS[stage])
        return max(FEWEST_SEQUENCES, share) if asked is None else asked

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


def aligned_width(channels: int) -> int:
    """The multiple of FFN channels that kernels like and that leaves 16 steps or more, else 1."""
    width = math.gcd(channels, WIDEST)
    while width > channels / 16:
        width //= 2
    return width if width >= NARROWEST else 1
