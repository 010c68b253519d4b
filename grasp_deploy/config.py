"""The configuration of a compression: one frozen dataclass, the single source of every option.

Each field carries its help and the panel of `--help` that it belongs to; the command line builds
its options from them. The JSON form is strict: an unknown key or a wrong type is an error.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Container
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from grasp_deploy.errors import InputError

BYTE_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40} | {
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}


BUDGETS = ("keep", "weights", "kv_per_token")
LARGEST_SEED = 2**32 - 1
LARGEST_NUMBER = 2**40
Criterion = Literal[  # one-shot scores; a test holds them to those that `pruning.criteria` knows
    "random",
    "magnitude",
    "taylor-vector",
    "taylor-element",
    "taylor-gate",
    "flap",
    "wanda-structured",
]
CRITERIA: tuple[str, ...] = typing.get_args(Criterion)
COST_MODELS = ("parameters", "kv-bytes", "memory")


def option(panel: str, help_text: str, default: Any = None) -> Any:
    """A field that is an option of the command line too."""
    return field(default=default, metadata={"panel": panel, "help": help_text})


@dataclass(frozen=True)
class CompressConfig:
    """All that decides a compressed model. Checked here for what needs no model to check."""

    model: str
    revision: str | None = option("Model", "Branch, tag or commit of a hub model.")

    keep: float | None = option("Budget", "Share of the prunable cost to keep, such as 0.6.")
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

    calibration: str = option(
        "Calibration",
        "Text or chats: wikitext2, ptb, c4, a local file, or hf:NAME[:CONFIG]; or several by "
        "weight, SOURCE:WEIGHT,SOURCE:WEIGHT, such as wikitext2:0.5,c4:0.5.",
        "wikitext2",
    )
    calibration_split: str | None = option(
        "Calibration",
        "Rows to use (of each source), such as 'train[:900]'. Default: the corpus's training part.",
    )
    calibration_column: str | None = option(
        "Calibration", "Column (of each source) that holds the text, or chats as lists of messages."
    )
    sequences: int = option("Calibration", "How many blocks of text.", 512)
    sequence_length: int = option("Calibration", "Tokens in a block.", 512)

    method: Literal["grasp", "gumbel-topk", "progressive", Criterion] = option(
        "Method",
        f"How units are chosen: grasp (learnt gates), gumbel-topk, progressive (a cut in rounds), "
        f"or at once by a criterion: {', '.join(CRITERIA)}.",
        "grasp",
    )
    start: Literal["equal", "progressive", Criterion] = option(
        "Method",
        "What learnt gates start from: progressive (a cut in rounds), equal scores, or the ranking "
        "of a criterion.",
        "progressive",
    )
    rounds: int = option("Method", "Rounds of a progressive cut.", 5)
    criterion_sequences: int = option("Method", "Blocks of text that a criterion reads.", 64)
    allocation: Literal["global", "layerwise", "owl"] = option(
        "Method",
        "Of a criterion's scores: global (one ranking), layerwise (equal shares), or owl (by "
        "outliers).",
        "global",
    )
    compensation: bool = option(
        "Method",
        "Solve the kept columns of the output layers for the dense model's hidden states.",
        True,
    )
    compensation_sequences: int = option("Method", "Blocks of text that this reads.", 128)
    ridge: float = option("Method", "Its pull towards the weights as they were.", 0.01)

    epochs: int = option("Learning", "Passes over the blocks to learn the gates.", 1)
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
    temperature: float = option("Learning", "p = sigmoid(score / temperature).", 1.5)
    batch_size: int = option("Learning", "Blocks in a step.", 1)
    scale_epochs: int = option("Learning", "Passes to calibrate the scales; 0: no scales.", 1)
    ranking: Literal["auto", "score", "score-per-cost"] = option(
        "Learning",
        "Rank units by score or by score-per-cost; auto: by score, but per cost for criteria that "
        "add up over a unit's weights.",
        "auto",
    )
    select: Literal["best", "last"] = option(
        "Learning", "best: keep the mask that does best on held-out blocks; last: the last.", "best"
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
        wrong_types = _type_problems(self)
        problems = [
            *wrong_types.values(),
            *_budget_problems(self, wrong_types),
            *_range_problems(self, wrong_types),
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

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

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
    """The options in a config file that an earlier run wrote; InputError if it holds none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"the config file {path} cannot be read ({reason}): name the compress_config.json "
            "that an earlier run wrote"
        ) from None
    if not isinstance(values, dict):
        raise InputError(
            f"the config file {path} is not a JSON object of options: name the "
            "compress_config.json that an earlier run wrote"
        )
    return values


def parse_bytes(text: str, flag: str) -> int:
    """Bytes in a size such as `9GiB`, `64KiB`, `500MB` or `1024`; InputError if it is none."""
    number = text.strip().rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    unit = text.strip()[len(number) :]
    scale = {name.lower(): factor for name, factor in BYTE_UNITS.items()}.get(unit.lower())
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if scale is None or not 0 < value * scale < 2**63:
        raise InputError(f"{flag} {text!r} is no size: write it like 9GiB, 64KiB or 500MB")
    return int(value * scale)


def flag(name: str) -> str:
    """The option's spelling on the command line."""
    return "--" + name.replace("_", "-")


def _type_problems(config: CompressConfig) -> dict[str, str]:
    """What is wrong, by the name of the field."""
    hints = typing.get_type_hints(CompressConfig)
    problems = {}
    for f in fields(config):
        value, wanted = getattr(config, f.name), hints[f.name]
        if not _fits(value, wanted):
            problems[f.name] = f"{flag(f.name)} {value!r} is not {_describe(wanted)}"
    return problems


def _fits(value: Any, wanted: Any) -> bool:
    if typing.get_origin(wanted) is types.UnionType:
        return any(_fits(value, choice) for choice in typing.get_args(wanted))
    if typing.get_origin(wanted) is Literal:
        return value in typing.get_args(wanted)
    if wanted is float:
        return type(value) is float or (type(value) is int and abs(value) <= LARGEST_NUMBER)
    return type(value) is wanted and (wanted is not int or abs(value) <= LARGEST_NUMBER)


def _describe(wanted: Any) -> str:
    if typing.get_origin(wanted) is Literal:
        return "one of " + ", ".join(typing.get_args(wanted))
    if typing.get_origin(wanted) is types.UnionType:
        return " or ".join(_describe(c) for c in typing.get_args(wanted) if c is not types.NoneType)
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names[wanted]


def _budget_problems(config: CompressConfig, wrong_types: Container[str]) -> list[str]:
    if any(name in wrong_types for name in (*BUDGETS, "cost", "cached_tokens", "kv_cost_factor")):
        return []
    budgets = [name for name in BUDGETS if getattr(config, name) is not None]
    if len(budgets) != 1:
        given = " and ".join(flag(name) for name in budgets) or "none"
        return [
            f"exactly one budget is needed, got {given}: give --keep, --weights or --kv-per-token"
        ]
    problems = []
    if config.keep is not None and not 0 < config.keep <= 1:
        percent = 1.5 <= config.keep <= 100
        remedy = f"for {config.keep:g} % write" if percent else "give a share such as"
        example = config.keep / 100 if percent else 0.6
        problems.append(
            f"--keep {config.keep:.10g} is not above 0 and at most 1: {remedy} {example:g}"
        )
    absolute = {"weights": "parameters", "kv_per_token": "kv-bytes"}.get(budgets[0])
    if absolute and config.cost_model != absolute:
        problems.append(
            f"{flag(budgets[0])} counts by --cost {absolute}, not {config.cost}: drop --cost"
        )
    if absolute and config.kv_cost_factor != 1:
        problems.append(
            f"--kv-cost-factor bends the count that {flag(budgets[0])} states: use --keep"
        )
    if absolute == "kv-bytes" and config.targets == "ffn":
        problems.append("--kv-per-token with --targets ffn removes nothing: drop one of them")
    if config.cost_model not in COST_MODELS and ":" not in config.cost_model:
        problems.append(
            f"--cost {config.cost} is unknown: choose {', '.join(COST_MODELS)} or your own "
            "package.module:function"
        )
    if (config.cost_model == "memory") != (config.cached_tokens is not None):
        problems.append("--cost memory and --cached-tokens go together: give both or neither")
    return problems


def _range_problems(config: CompressConfig, wrong_types: Container[str]) -> list[str]:
    at_least = dict.fromkeys(
        (
            *("ffn_multiple", "kv_multiple", "tensor_parallel", "sequences", "epochs"),
            *("batch_size", "criterion_sequences", "compensation_sequences", "rounds"),
        ),
        1,
    ) | {"sequence_length": 2, "scale_epochs": 0, "seed": 0, "cached_tokens": 0}
    problems = []
    values = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in wrong_types}
    for name, least in at_least.items():
        if values.get(name) is not None and values[name] < least:
            problems.append(f"{flag(name)} {values[name]} is under {least}")
    if values.get("seed", 0) > LARGEST_SEED:
        problems.append(f"--seed {config.seed} is over {LARGEST_SEED}")
    for name in ("learning_rate", "temperature", "kv_cost_factor", "ridge"):
        if name in values and not 1e-6 <= values[name] <= 1e6:
            problems.append(f"{flag(name)} {values[name]} is not between 1e-6 and 1e6")
    if {"method", "start", "allocation"} <= values.keys() and not _shares_out(config):
        problems.append(
            f"--allocation {config.allocation} bends the ranking of one criterion, and none is "
            "used: give --method or --start a criterion, such as taylor-element"
        )
    for name in ("weights", "kv_per_token"):
        if values.get(name) is not None:
            try:
                parse_bytes(values[name], flag(name))
            except InputError as error:
                problems.append(str(error))
    return problems


def _shares_out(config: CompressConfig) -> bool:
    """Whether the allocation has a criterion's scores to work on, or nothing to do."""
    learns = config.method in ("grasp", "gumbel-topk")
    criterion = config.start if learns else config.method
    return config.allocation == "global" or criterion in CRITERIA
