"""The options of a compression: every name, type, bound, default and help text."""

from __future__ import annotations

import math
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

METHODS = ("grasp", "progressive")
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

    method: str = option(
        "How units are chosen: grasp (gates learnt under the budget, after pruning in rounds), "
        "progressive (rounds alone), or your own package.module:function.",
        "grasp",
        "Method",
    )
    rounds: Count = study("Rounds of progressive pruning.", 5)
    compensation: bool = study(
        "Refit the kept output columns to the dense model's hidden states by least squares.", True
    )
    ridge: Factor = study(
        "Tokens per input for which the original weights count in least squares.", 16.0
    )

    learning_rate: Factor = study("AdamW learning rate of scores and scales.", 0.01)
    temperature: Factor = study("Temperature of the gates: p = sigmoid(score / temperature).", 1.5)
    batch_size: Count = study("Sequences in a step.", 1)
    scale_epochs: CountOrZero = study(
        "Passes over the sequences to learn the scales; 0: no scales.", 1
    )
    norm_scales: bool = study(
        "Learn a scale for each hidden channel behind each norm too, and fold it into the norm.",
        True,
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
        """Sequences that a stage may read: its share of all."""
        return max(FEWEST_SEQUENCES, math.ceil(self.sequences / STAGE_PARTS[stage]))

    @property
    def learns(self) -> bool:
        """True if gates are learnt, behind rounds."""
        return self.method == "grasp"

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
