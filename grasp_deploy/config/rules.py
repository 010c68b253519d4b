"""Rules across the options of a compression that need no model: one line for each problem."""

import re
from collections.abc import Iterator, Sequence

from grasp_deploy.config.compress_options import COST_OF_BUDGET, METHODS, SIZES, CompressOptions
from grasp_deploy.config.option import assigned, flag
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import kind_of
from grasp_deploy.files.sizes import parse_bytes

BUDGETS = (*SIZES, "max_loss")
DEPLOYMENT = ("concurrency", "context", "kv_dtype", "gpu_memory_utilization", "overhead")
COST_MODELS = ("parameters", "kv-bytes", "memory", "latency")
IN_BYTES = ("weights", "kv_per_token", "gpu_memory", "overhead")


def rule_problems(config: CompressOptions) -> list[str]:
    """Problems between options whose values are right one by one."""
    return [
        *_unreadable(config),
        *_budget_problems(config),
        *_deployment_problems(config),
        *_walk_problems(config),
        *_cost_problems(config),
        *_unused(config),
    ]


def _unreadable(config: CompressOptions) -> Iterator[str]:
    for name in IN_BYTES:
        text = getattr(config, name)
        try:
            if text is not None:
                parse_bytes(text, flag(config, name))
        except InputError as error:
            yield str(error)


def _budget_problems(config: CompressOptions) -> Iterator[str]:
    budgets = [name for name in SIZES if getattr(config, name) is not None]
    if not budgets and config.max_loss is not None:  # else a bound stands beside a budget
        budgets = ["max_loss"]
    if len(budgets) != 1:
        given = " and ".join(flag(config, name) for name in budgets) or "none"
        yield (
            f"exactly one budget is needed, got {given}: give --keep, --weights, --kv-per-token, "
            "--gpu-memory, --speedup or --max-loss"
        )
    elif cost := COST_OF_BUDGET.get(budgets[0]):
        budget = flag(config, budgets[0])
        if config.cost_model != cost:
            yield f"{budget} counts by --cost {cost}, not {config.cost}: drop --cost"
        if cost == "kv-bytes" and config.targets == "ffn":
            yield f"{budget} with {assigned(config, 'targets')} removes nothing: drop one of them"


def _deployment_problems(config: CompressOptions) -> Iterator[str]:
    if config.gpu_memory is None:
        for name in DEPLOYMENT:
            if _is_given(config, name) and (name, config.cost_model) != ("context", "latency"):
                yield f"{assigned(config, name)} belongs to --gpu-memory: give both, or drop it"
        return
    if config.tensor_parallel > 1:
        yield "--gpu-memory counts one GPU, and --tensor-parallel needs several: drop one of them"
    if config.concurrency is None or config.context is None:
        yield (
            "--gpu-memory holds a load beside the weights: give --concurrency, the sequences "
            "served at a time, and --context, the tokens of each"
        )


def _walk_problems(config: CompressOptions) -> Iterator[str]:
    keeps = list(config.family)
    if keeps and (keeps != sorted(set(keeps), reverse=True) or config.keep not in keeps):
        yield (
            f"family {keeps} with keep {config.keep}: give falling budgets, such as (0.8, 0.6), "
            "and keep as one of them or not at all"
        )
    if config.recover is not None and config.max_loss is not None:
        yield "--max-loss measures a model before --recover: give only one of them"
    if config.family and config.max_loss is not None:
        yield "a family has no bound on the loss: give one --keep, or drop --max-loss"
    if not config.cuts_in_rounds and ":" not in config.method:
        yield (
            f"--method {config.method} is unknown: choose {', '.join(METHODS)} or your own "
            "package.module:function"
        )
    elif config.walks and not config.cuts_in_rounds:
        method = assigned(config, "method")
        yield f"budgets that fall step by step need pruning in rounds: drop {method}"


def _cost_problems(config: CompressOptions) -> Iterator[str]:
    if config.cost_model not in COST_MODELS and ":" not in config.cost_model:
        yield (
            f"--cost {config.cost} is unknown: choose {', '.join(COST_MODELS)} or your own "
            "package.module:function"
        )
    counts_tokens = config.cost_model == "memory" and config.gpu_memory is None
    if counts_tokens != (config.cached_tokens is not None):
        yield "--cost memory and --cached-tokens go together: give both or neither"
    if config.cost_model != "latency":
        return
    asked = "--cost latency" if config.speedup is None else "--speedup"
    if None in (config.batch, config.context):
        yield (
            f"{asked} goes by measured times: give both --batch, of sequences at a time, and "
            "--context, their tokens at the end"
        )
    if config.tensor_parallel > 1:
        yield f"{asked} times one GPU, and --tensor-parallel needs several: drop one of them"


def _unused(config: CompressOptions) -> Iterator[str]:
    method = assigned(config, "method")
    learns = config.learns or config.scale_epochs > 0
    for name, is_used, reason in (
        ("temperature", config.learns, f"{method} learns no gates"),
        ("learning_rate", learns, f"{method} without scales learns nothing"),
        ("rounds", config.cuts_in_rounds, f"{method} does not prune in rounds"),
        ("ridge", config.compensation, "nothing is refitted without compensation"),
        ("batch", config.cost_model == "latency", f"--cost {config.cost_model} counts no time"),
        ("bound_step", config.max_loss is not None, "no --max-loss is given"),
    ):
        if not is_used and _is_given(config, name):
            yield f"{assigned(config, name)} has no effect, since {reason}: drop it"


def own_texts(texts: Sequence[str]) -> list[str]:
    """Those that name text of the model's own, whatever they weigh; no file such as `self@home`."""
    return [
        text
        for text in map(str, texts)
        if text.partition(":")[0] == "self"
        or (re.split("[@=]", text)[0] == "self" and not _names_file(text))
    ]


def _names_file(text: str) -> bool:
    """True if there is such a file, with or without a weight or a slice behind its name."""
    names = {text, text.rpartition("=")[0], text.rpartition("@")[0]} - {"", "self"}
    return any(map(kind_of, names))


def _is_given(config: CompressOptions, name: str) -> bool:
    return bool(getattr(config, name) != getattr(type(config), name))  # the default
