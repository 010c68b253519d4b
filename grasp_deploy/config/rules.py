"""What is wrong with a configuration, as far as that shows without a model: one line for each."""

from __future__ import annotations

import types
import typing
from collections.abc import Container, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import parse_bytes

if TYPE_CHECKING:
    from grasp_deploy.config.compress_config import CompressConfig

BUDGETS = ("keep", "weights", "kv_per_token")
COST_MODELS = ("parameters", "kv-bytes", "memory")
LEARNT_METHODS = ("grasp", "gumbel-topk")
PER_COST_MEANS_NOTHING = ("random", "flap", "wanda-structured")  # a test holds it to ADDITIVE
OF_LEARNT_GATES = (
    *("start", "epochs", "gate_sequences", "objective"),
    *("gate_site", "temperature", "swap_groups"),
)
OF_LEARNING = ("learning_rate", "learning_rate_schedule", "select")
OF_ROUNDS = ("rounds", "round_criterion")
OF_CRITERIA = ("criterion_sequences",)
OF_COMPENSATION = ("compensation_sequences", "ridge")
LARGEST_SEED = 2**32 - 1
LARGEST_NUMBER = 2**40


def flag(name: str) -> str:
    """The option's spelling on the command line."""
    return "--" + name.replace("_", "-")


def type_problems(config: CompressConfig) -> dict[str, str]:
    """Fields whose value is not of their type, and what is wrong with each."""
    hints = typing.get_type_hints(type(config))
    problems = {}
    for f in fields(config):
        value, wanted = getattr(config, f.name), hints[f.name]
        texts = value if isinstance(value, tuple) else (value,)
        if not all(_is_utf8(text) for text in texts if isinstance(text, str)):
            problems[f.name] = f"{flag(f.name)} {value!r} is no UTF-8: choose another name"
        elif not _fits(value, wanted):
            problems[f.name] = f"{flag(f.name)} {value!r} is not {_describe(wanted)}"
    return problems


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # what an argument becomes whose bytes are none
        return False
    return True


def _fits(value: Any, wanted: Any) -> bool:
    if typing.get_origin(wanted) is types.UnionType:
        return any(_fits(value, choice) for choice in typing.get_args(wanted))
    if typing.get_origin(wanted) is Literal:
        return value in typing.get_args(wanted)
    if typing.get_origin(wanted) is tuple:
        return isinstance(value, tuple) and all(isinstance(text, str) for text in value)
    if wanted is float:
        return type(value) is float or (type(value) is int and abs(value) <= LARGEST_NUMBER)
    return type(value) is wanted and (wanted is not int or abs(value) <= LARGEST_NUMBER)


def _describe(wanted: Any) -> str:
    if typing.get_origin(wanted) is Literal:
        return "one of " + ", ".join(typing.get_args(wanted))
    if typing.get_origin(wanted) is types.UnionType:
        return " or ".join(_describe(c) for c in typing.get_args(wanted) if c is not types.NoneType)
    if typing.get_origin(wanted) is tuple:
        return "a list of texts"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names[wanted]


def budget_problems(config: CompressConfig, wrong_types: Container[str]) -> list[str]:
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
        percent = 2 <= config.keep <= 100
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


def range_problems(config: CompressConfig, wrong_types: Container[str]) -> list[str]:
    at_least = dict.fromkeys(
        (
            *("ffn_multiple", "kv_multiple", "tensor_parallel", "sequences", "epochs"),
            *("batch_size", "criterion_sequences", "compensation_sequences", "gate_sequences"),
            "rounds",
        ),
        1,
    ) | dict.fromkeys(("scale_epochs", "swap_groups", "seed", "cached_tokens"), 0)
    at_least["sequence_length"] = 2
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
    if {"method", "start", "allocation"} <= values.keys() and not config.shares_out:
        problems.append(
            f"--allocation {config.allocation} bends the ranking of one criterion, and none is "
            "used: give --method a criterion, such as obs (or --method grasp and --start one)"
        )
    for name in ("weights", "kv_per_token"):
        if values.get(name) is not None:
            try:
                parse_bytes(values[name], flag(name))
            except InputError as error:
                problems.append(str(error))
    return problems


def unused_problems(config: CompressConfig, wrong_types: Container[str]) -> list[str]:
    """Options that somebody set and that the rest of the config leaves nothing to work on."""
    decisive = (
        *("method", "start", "round_criterion", "ranking", "compensation", "scale_epochs"),
        *("targets", "cost", "kv_cost_factor", "swap_groups"),
    )
    if any(name in wrong_types for name in decisive):
        return []
    defaults = {f.name: f.default for f in fields(config)}
    problems = [
        f"{flag(name)} is about {reason}, or drop {flag(name)}"
        for names, reason in _idle(config)
        for name in names
        if name not in wrong_types and getattr(config, name) != defaults[name]
    ]
    if config.learns and config.swap_groups and config.targets == "ffn":
        problems.append("--swap-groups with --targets ffn swaps nothing: drop one of them")
    if config.kv_cost_factor != 1:
        only = f"--targets {config.targets}" if config.targets != "both" else "--cost kv-bytes"
        if config.targets != "both" or config.cost_model == "kv-bytes":
            problems.append(
                f"--kv-cost-factor with {only} changes nothing, since only one kind of unit is "
                "paid for: drop one of them"
            )
    scored_by = config.round_criterion if config.cuts_in_rounds else config.method
    per_cost = config.ranking == "score-per-cost" and not config.learns
    if per_cost and scored_by in PER_COST_MEANS_NOTHING:
        problems.append(
            f"--ranking score-per-cost has no meaning for the scores of {scored_by}, which have no "
            "zero: drop it, or choose another criterion"
        )
    return problems


def _idle(config: CompressConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Names of options that do nothing here; and what they are about, why that is missing here, and
    what would bring it."""
    if not config.learns:
        reason = f"learnt gates, and --method {config.method} learns none: add --method grasp"
        yield OF_LEARNT_GATES, reason
        if not config.scale_epochs:
            reason = f"learning, and --method {config.method} without scales learns nothing: "
            yield OF_LEARNING, reason + "drop --scale-epochs 0"
    if not config.cuts_in_rounds:
        reason, remedy = f"--method {config.method}", "drop --method"
        if config.learns:
            reason, remedy = f"--start {config.start}", "drop --start"
        yield OF_ROUNDS, f"a cut in rounds, and {reason} makes none: {remedy}"
    scored_by = config.start if config.learns else config.method
    if scored_by in ("equal", "random", "magnitude"):
        name = "--start" if config.learns else "--method"
        yield OF_CRITERIA, f"a criterion's text, and {name} {scored_by} reads none: drop {name}"
    if config.learns and config.targets == "ffn":
        reason = "gates of KV groups, and --targets ffn has none: drop --targets"
        yield ("gate_site",), reason
    if not config.compensation:
        reason = "the compensation, and --no-compensation leaves it out: drop --no-compensation"
        yield OF_COMPENSATION, reason
