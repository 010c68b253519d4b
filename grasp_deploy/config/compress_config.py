"""The configuration of a compression: one frozen dataclass, the single source of every option.

Each field carries its help and the panel of `--help` that it belongs to; the command line builds
its options from them. The JSON form is strict: an unknown key or a wrong type is an error.
"""

from __future__ import annotations

import json
import math
import typing
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from grasp_deploy.config.rules import (
    LEARNT_METHODS,
    budget_problems,
    range_problems,
    type_problems,
    unused_problems,
)
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import read_json

Criterion = Literal[  # one-shot scores; a test holds them to those that `pruning.criteria` knows
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


def option(panel: str, help_text: str, default: Any = None) -> Any:
    """A field that is an option of the command line too."""
    return field(default=default, metadata={"panel": panel, "help": help_text})


@dataclass(frozen=True)
class CompressConfig:
    """All that decides a compressed model. Checked here for what needs no model to check."""

    model: str
    revision: str | None = option("Model", "Branch, tag or commit of a hub model.")

    keep: float | None = option(
        "Budget", "Share of the prunable cost to keep, such as 0.6. One budget is required."
    )
    weights: str | None = option(
        "Budget", "Instead of --keep: size of all weights, such as 9GiB (cost: parameters)."
    )
    kv_per_token: str | None = option(
        "Budget", "Instead of --keep: KV cache of one token, such as 64KiB (cost: kv-bytes)."
    )
    cost: str | None = option(
        "Budget",
        "What a unit costs: parameters, kv-bytes, memory, or your own package.module:function.",
    )
    cached_tokens: int | None = option(
        "Budget", "Tokens that the deployment caches (context x sequences); for --cost memory."
    )
    kv_cost_factor: float = option("Budget", "Multiplies the cost of KV groups.", 1.0)
    targets: Literal["both", "ffn", "kv"] = option(
        "Budget", "Units that may be removed: both, ffn or kv.", "both"
    )

    ffn_multiple: int = option("Shapes", "Each layer keeps a multiple of so many channels.", 1)
    kv_multiple: int = option("Shapes", "Each layer keeps a multiple of so many KV groups.", 1)
    tensor_parallel: int = option(
        "Shapes", "Tensor-parallel size that every layer must divide by; sets both multiples.", 1
    )

    calibration: tuple[str, ...] = option(
        "Calibration",
        "Text or chats, as TEXT[@SPLIT][=WEIGHT]: wikitext2, ptb, c4, a local file or "
        "hf:NAME[:CONFIG]. May be repeated; the sequences are shared out by weight, or equally.",
        ("wikitext2",),
    )
    calibration_split: str | None = option(
        "Calibration",
        "Rows of each text that names none, such as 'train[:900]'. Default: train.",
    )
    calibration_column: str | None = option(
        "Calibration", "Column that holds the text, or chats as lists of messages."
    )
    sequences: int = option("Calibration", "How many blocks of text.", 512)
    sequence_length: int = option("Calibration", "Tokens in a block.", 512)

    method: Literal["progressive", "grasp", "gumbel-topk", Criterion] = option(
        "Method",
        "How units are chosen: grasp (gates learnt under the budget, from --start), progressive "
        f"(rounds alone), gumbel-topk, or at once by a criterion: {', '.join(CRITERIA)}.",
        "grasp",
    )
    start: Literal["progressive", "equal", Criterion] = option(
        "Method",
        "What learnt gates start from: progressive (a cut in rounds), equal scores, or the ranking "
        "of a criterion.",
        "progressive",
    )
    rounds: int = option("Method", "Rounds of a progressive cut.", 5)
    round_criterion: Literal[Criterion] = option(
        "Method", "What each of them scores units by.", "obs"
    )
    criterion_sequences: int = option("Calibration", "Blocks that a criterion reads.", 64)
    allocation: Literal["global", "layerwise", "owl"] = option(
        "Method",
        "Of a criterion's scores: global (one ranking), layerwise (equal shares), or owl (by "
        "outliers).",
        "global",
    )
    compensation: bool = option(
        "Compensation",
        "Solve the kept columns of the output layers for the dense model's hidden states.",
        True,
    )
    compensation_sequences: int = option("Calibration", "Blocks that compensation reads.", 128)
    ridge: float = option("Compensation", "Its pull towards the weights as they were.", 0.01)

    epochs: int = option("Learning", "Passes over the sequences that gates are learnt from.", 1)
    gate_sequences: int = option("Calibration", "Sequences that gates are learnt from.", 256)
    learning_rate: float = option("Learning", "Of AdamW, for scores and scales.", 0.01)
    learning_rate_schedule: Literal["constant", "cosine"] = option(
        "Learning", "constant, or falling to 0 along half a cosine.", "cosine"
    )
    objective: Literal["text", "distillation"] = option(
        "Learning",
        "What gates are learnt from: text (its own loss), or distillation (the dense model's "
        "predictions on it).",
        "text",
    )
    gate_site: Literal["outputs", "keys-values"] = option(
        "Learning",
        "What a KV group's gate multiplies while it is learnt: outputs (of its heads), or "
        "keys-values (its keys and values).",
        "outputs",
    )
    temperature: float = option("Learning", "p = sigmoid(score / temperature).", 1.5)
    batch_size: int = option("Learning", "Blocks in a step.", 1)
    scale_epochs: int = option("Learning", "Passes to calibrate the scales; 0: no scales.", 1)
    ranking: Literal["auto", "score", "score-per-cost"] = option(
        "Learning",
        "Rank units by score or by score-per-cost; auto: by score, but per cost for criteria whose "
        "scores are losses or sums over weights.",
        "auto",
    )
    select: Literal["best", "last", "average"] = option(
        "Learning",
        "best: keep the mask that does best on held-out blocks; last: the last; average: that of "
        "the mean scores of the last quarter of the steps (scales alike). With compensation, the "
        "mask of a start in rounds stays if it does better on those blocks.",
        "best",
    )
    swap_groups: int = option(
        "Learning",
        "Once gates are learnt, try so many kept and so many removed KV groups, those nearest to "
        "the cut, on its other side, by the loss on held-out blocks.",
        0,
    )
    seed: int = option("Learning", "Orders the blocks and breaks ties.", 0)
    device: str = option("Learning", "auto, cpu, cuda, cuda:1, ...", "auto")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "Learning",
        "Of the frozen model: auto, float32, bfloat16, float16; auto: float32 on a CPU.",
        "auto",
    )
    attention: str = option("Learning", "Attention implementation of transformers.", "sdpa")
    gradient_checkpointing: bool = option(
        "Learning", "Store fewer activations and compute them twice.", False
    )

    def __post_init__(self) -> None:
        texts: Any = self.calibration
        if isinstance(texts, list):  # as JSON has it
            object.__setattr__(self, "calibration", tuple(texts))
        wrong_types = type_problems(self)
        problems = [
            *wrong_types.values(),
            *budget_problems(self, wrong_types),
            *range_problems(self, wrong_types),
            *unused_problems(self, wrong_types),
        ]
        if problems:
            raise InputError("; ".join(problems))

    @property
    def cost_model(self) -> str:
        """The cost model, with the default that the kind of budget implies."""
        return self.cost or ("kv-bytes" if self.kv_per_token else "parameters")

    @property
    def effective_multiples(self) -> tuple[int, int]:
        """Multiples of FFN channels and of KV groups, tensor parallelism included."""
        size = self.tensor_parallel
        return math.lcm(self.ffn_multiple, size), math.lcm(self.kv_multiple, size)

    @property
    def learns(self) -> bool:
        """Whether gates are learnt, or units chosen in rounds or at once."""
        return self.method in LEARNT_METHODS

    @property
    def cuts_in_rounds(self) -> bool:
        """Whether units are removed in rounds, before any gates are learnt."""
        return (self.start if self.learns else self.method) == "progressive"

    @property
    def shares_out(self) -> bool:
        """Whether the allocation has a criterion's scores to work on, or nothing to do."""
        criterion = self.start if self.learns else self.method
        return self.allocation == "global" or criterion in CRITERIA

    def as_dict(self) -> dict[str, Any]:
        """The options as JSON holds them."""
        return {**asdict(self), "calibration": list(self.calibration)}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str) -> CompressConfig:
        """From parsed JSON; InputError names the source and what is wrong with it."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InputError(
                f"{source} has unknown keys {', '.join(unknown)}: the known ones are "
                f"{', '.join(sorted(known))}"
            )
        if "model" not in values:
            raise InputError(f"{source} names no model: give MODEL, a hub id or a folder")
        return cls(**values)


def read_config_file(path: Path) -> dict[str, Any]:
    """Options from a config file that an earlier run wrote; InputError if it holds none."""
    return read_json(path, "name the compress_config.json that an earlier run wrote")
