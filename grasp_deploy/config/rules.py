"""Rules across the options of a compression that need no model: one line for each problem."""

from __future__ import annotations

from collections.abc import Iterator

from grasp_deploy.config.compress_options import METHODS, CompressOptions
from grasp_deploy.config.goal import BOUNDS, SIZES, TIMES
from grasp_deploy.config.option import assigned, flag, parse_percent
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import parse_bytes

BUDGETS = (*SIZES, *BOUNDS)
COST_OF_BUDGET = {
    **{"weights": "parameters", "kv_per_token": "kv-bytes", "gpu_memory": "memory"},
    **dict.fromkeys(TIMES, "latency"),
}
DEPLOYMENT = ("concurrent", "context", "kv_dtype", "gpu_memory_utilization", "overhead")
COST_MODELS = ("parameters", "kv-bytes", "memory", "latency")


def rule_problems(config: CompressOptions) -> list[str]:
    """Problems between options whose values are right one by one."""
    return [
        *_budget_problems(config),
        *_method_problems(config),
        *_walk_problems(config),
        *_cost_problems(config),
        *_unused_problems(config),
    ]


def _budget_problems(config: CompressOptions) -> Iterator[str]:
    budgets, bounds = (
        [name for name in names if getattr(config, name) is not None] for names in (SIZES, BOUNDS)
    )
    if len(bounds) > 1 or not budgets:  # else a bound may stand beside a budget
        budgets += bounds
    if len(budgets) != 1:
        given = " and ".join(flag(config, name) for name in budgets) or "none"
        yield (
            f"exactly one budget is needed, got {given}: give --keep, --weights, --kv-per-token, "
            "--gpu-memory, --speedup or --max-loss"
        )
        return
    budget = flag(config, budgets[0])
    yield from _deployment_problems(config)
    implied_cost = COST_OF_BUDGET.get(budgets[0])
    if implied_cost is None:
        return
    if implied_cost != "latency":
        try:
            parse_bytes(getattr(config, budgets[0]), budget)
        except InputError as error:
            yield str(error)
    if config.cost_model != implied_cost:
        yield f"{budget} counts by --cost {implied_cost}, not {config.cost}: drop --cost"
    if config.kv_cost_factor != 1:
        yield f"{assigned(config, 'kv_cost_factor')} changes what {budget} counts: use --keep"
    if implied_cost == "kv-bytes" and config.targets == "ffn":
        yield f"{budget} with {assigned(config, 'targets')} removes nothing: drop one of them"


def _deployment_problems(config: CompressOptions) -> Iterator[str]:
    if config.gpu_memory is None:
        for name in DEPLOYMENT:
            if name == "context" and config.cost_model == "latency":
                continue
            if getattr(config, name) != getattr(type(config), name):  # the default
                hint = " (those of the calibration: --calibration-sequences)"
                yield (
                    f"{assigned(config, name)} belongs to --gpu-memory: give both, or drop it"
                    f"{hint if name == 'concurrent' else ''}"
                )
        return
    if config.tensor_parallel > 1:
        yield "--gpu-memory counts one GPU, and --tensor-parallel needs several: drop one of them"
    if config.concurrent is None or config.context is None:
        yield (
            "--gpu-memory holds a load beside the weights: say how many --sequences are served at "
            "a time, and the --context of each in tokens"
        )
    try:
        parse_bytes(config.overhead, "--overhead")
    except InputError as error:
        yield str(error)


def _method_problems(config: CompressOptions) -> Iterator[str]:
    if not config.cuts_in_rounds and ":" not in config.method:
        yield (
            f"--method {config.method} is unknown: choose {', '.join(METHODS)} or your own "
            "package.module:function"
        )


def _walk_problems(config: CompressOptions) -> Iterator[str]:
    increase = config.max_perplexity_increase
    if increase is not None:
        try:
            parse_percent(increase)
        except ValueError:
            yield f"--max-perplexity-increase {increase!r:.40} is no share: write it like 5%"
            return
    keeps = list(config.family)
    if keeps and (keeps != sorted(set(keeps), reverse=True) or config.keep not in keeps):
        yield f"family {keeps} is no falling list of budgets with keep {config.keep} among them"
    if config.family and config.is_bound:
        yield "a family has no bound on the loss: give one --keep, or drop --max-loss"
    if config.walks and not config.cuts_in_rounds:
        method = assigned(config, "method")
        yield f"budgets that fall step by step need pruning in rounds: drop {method}"
    if not config.is_bound and config.bound_step != type(config).bound_step:
        yield f"{assigned(config, 'bound_step')} has no effect without --max-loss: drop it"


def _cost_problems(config: CompressOptions) -> Iterator[str]:
    if config.cost_model not in COST_MODELS and ":" not in config.cost_model:
        yield (
            f"--cost {config.cost} is unknown: choose {', '.join(COST_MODELS)} or your own "
            "package.module:function"
        )
    counts_tokens = config.cost_model == "memory" and config.gpu_memory is None
    if counts_tokens != (config.cached_tokens is not None):
        yield "--cost memory and --cached-tokens go together: give both or neither"
    if config.cost_model == "latency" and None in (config.batch, config.context):
        asked = next((n for n in TIMES if getattr(config, n) is not None), None)
        yield (
            f"{flag(config, asked) if asked else '--cost latency'} goes by measured times: give "
            "both --batch, of sequences at a time, and --context, their tokens at the end"
        )
    if config.kv_cost_factor != 1 and (config.targets != "both" or config.cost_model == "kv-bytes"):
        only = assigned(config, "targets") if config.targets != "both" else "--cost kv-bytes"
        yield (
            f"{assigned(config, 'kv_cost_factor')} with {only} changes nothing, since only one "
            "kind of unit has a cost: drop one of them"
        )


def _unused_problems(config: CompressOptions) -> Iterator[str]:
    for names, reason in _without_effect(config):
        for name in names:
            if getattr(config, name) != getattr(type(config), name):  # the default
                option = assigned(config, name)
                yield f"{option} has no effect: {reason}, or drop {option}"


def _without_effect(config: CompressOptions) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield names of options without effect under this config, with the reason and the remedy."""
    method = assigned(config, "method")
    no_scales = assigned(config, "scale_epochs")
    compensation = assigned(config, "compensation")
    if not config.learns:
        yield ("temperature",), f"{method} learns no gates; choose --method grasp"
        if not config.scale_epochs:
            nothing = f"{method} with {no_scales} learns nothing; drop {no_scales}"
            yield ("learning_rate",), nothing
    if not config.cuts_in_rounds:
        yield ("rounds",), f"{method} does not prune in rounds; drop {method}"
    if config.cost_model != "latency":
        yield (
            ("batch",),
            f"--cost {config.cost_model} counts no time; choose --cost latency",
        )
    if not config.compensation:
        yield ("ridge",), f"{compensation} skips the refit; drop {compensation}"
