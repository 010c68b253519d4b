"""From the options of a budget to the costs of all units and the limit on their sum."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor

from grasp_deploy.checkpoint.footprint import KV_BYTES, Load, Room, deployment_memory
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.limits import LINEAR_HEADS
from grasp_deploy.checkpoint.plan import shape_keeping
from grasp_deploy.compression.own_function import own_values
from grasp_deploy.compression.time_budget import no_price, time_budget
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.compress_options import SIZES
from grasp_deploy.config.option import assigned
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import parse_bytes, size_option
from grasp_deploy.pruning.budget import Budget, BudgetError, exactly_summable, make_budget
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.units import UnitTable

LARGEST_COST = 1e18  # so that float32 holds a score per cost
LARGEST_RANGE = 1e9  # between the largest and the smallest cost
KV_STAYS = (
    "only some layers see a window, and vLLM gives every layer of such a model the cache of the "
    "widest one"
)


def unit_table(shape: ModelShape) -> UnitTable:
    """Flat axis of a dense model's units."""
    return UnitTable.of_layers(
        [(layer.ffn_units, layer.num_key_value_heads) for layer in shape.layers],
        shape.experts_per_token,
    )


def budget_for(config: CompressConfig, shape: ModelShape, device: torch.device) -> Budget:
    """Checked budget for a dense model's shape; InputError names the next possible one."""
    refuse_pruned(config, shape)
    if shape.linear and not shape.linear.divides(config.tensor_parallel):
        raise InputError(
            f"--tensor-parallel {config.tensor_parallel} does not divide the {LINEAR_HEADS}, which "
            "pruning leaves as they are: take a size that does"
        )
    units = unit_table(shape)
    costs = unit_costs(config, shape, units)
    time = time_budget(config)
    if shape.windows.are_mixed and (config.targets == "kv" or not (time or costs.any())):
        raise InputError(
            f"only FFN channels go here, since {KV_STAYS}: choose a budget, cost and targets that "
            "count them"
        )
    if time and not costs.any():
        raise no_price(time.dense_seconds, 0.0)  # of the units that may go
    limit, as_option = _limit(config, shape, float(costs.sum()))
    ffn_multiple, kv_multiple = multiples_for(config, shape)
    try:
        return make_budget(
            units,
            costs,
            limit,
            ffn_multiple=ffn_multiple,
            kv_multiple=kv_multiple,
            seed=config.seed,
            device=device,
        )
    except BudgetError as error:
        if error.smallest_limit is not None:
            nearest = as_option(error.smallest_limit)
            cause = "what no pruning removes takes more" if limit < 0 else error
            end = "smallest" if config.speedup is None else "largest"
            raise InputError(
                f"{written(config)} is beyond reach: {cause}: the {end} possible is {nearest}"
            ) from None
        size = config.tensor_parallel
        cause = f" (--tensor-parallel {size} asks for multiples of {size})" if size > 1 else ""
        raise InputError(f"{error}{cause}") from None


def multiples_for(config: CompressConfig, shape: ModelShape) -> tuple[int, int]:
    """The multiples of FFN channels or experts, and of KV groups, that layers of a model keep."""
    widest = max(layer.ffn_units for layer in shape.layers)
    return config.multiples(1 if shape.experts_per_token else widest)  # kernels align no experts


def shape_within(budget: Budget, shape: ModelShape, scores: Tensor | None = None) -> ModelShape:
    """The shape that a budget leaves of a dense model; without `(N,)` scores, all of them tie."""
    mask = project(torch.zeros_like(budget.costs) if scores is None else scores, budget)
    return shape_keeping(shape, budget.units.kept_per_layer(mask))


def refuse_pruned(config: CompressConfig, shape: ModelShape) -> None:
    """Raise InputError for a model that is pruned already."""
    if shape.pruned:
        raise InputError(
            f"{config.model} is already pruned: name the model that it came from, as its plan does"
        )


def _limit(
    config: CompressConfig, shape: ModelShape, total: float
) -> tuple[float, Callable[[float], str]]:
    """The limit `B` on the sum of costs, and a function that writes a limit as the user's option.

    Raises InputError if the dense model is within the budget already.
    """
    if config.keep is not None or config.walks:
        # The decimal that the user wrote: 0.57 of 10,000 is 5,700 and not a hair less.
        keep = 1 - config.bound_step if config.keep is None else Fraction(str(config.keep))
        return float(keep * Fraction(total)), (
            lambda limit: f"--keep {math.ceil(10_000 * Fraction(limit) / Fraction(total)) / 1e4:g}"
        )
    dense, asked, costs_each, as_option = _amounts(config, shape, total)
    if asked > dense:
        takes = as_option(dense).split()[-1]  # a size: every speedup is less than dense
        raise InputError(
            f"{written(config)} needs no pruning, since the dense model takes {takes}: serve it as "
            "it is, or ask for less"
        )
    limit = total - (dense - asked) * costs_each
    return limit, lambda limit: as_option(dense - (total - limit) / costs_each)


def _amounts(
    config: CompressConfig, shape: ModelShape, total: float
) -> tuple[float, float, float, Callable[[float], str]]:
    """Bytes or seconds that the dense model takes, those allowed, and the cost of one of them.

    The fourth value is a function that writes an amount as the option that asks for it.
    """

    def sized(option: str, amount: float) -> str:
        return f"{option} {size_option(amount)}"

    if time := time_budget(config):
        as_option = partial(time.as_option, total / 1e9)
        return time.dense_seconds, time.asked_seconds, 1e9, as_option
    if config.gpu_memory is not None:
        room = room_of(config)
        dense = deployment_memory(shape, load_of(config), room.overhead_bytes).total_bytes
        of_gpu = partial(sized, "--gpu-memory")
        return dense, room.usable_bytes, 1, lambda amount: of_gpu(room.memory_for(amount))
    if config.weights is not None:
        asked, option = parse_bytes(config.weights, "--weights"), partial(sized, "--weights")
        return shape.weight_bytes, asked, 1 / shape.bytes_per_parameter, option
    asked = parse_bytes(config.kv_per_token or "", "--kv-per-token")
    return shape.kv_bytes_per_token(), asked, 1, partial(sized, "--kv-per-token")


def written(config: CompressConfig) -> str:
    """The option that asks for the budget, as the user wrote it."""
    size = next((name for name in SIZES if getattr(config, name) is not None), "bound_step")
    return assigned(config, size)


def load_of(config: CompressConfig) -> Load:
    """The load that the model must serve within a deployment's budget."""
    assert config.concurrency is not None and config.context is not None, "checked with the config"
    return Load(config.concurrency, config.context, KV_BYTES.get(config.kv_dtype))


def room_of(config: CompressConfig) -> Room:
    """The memory that a deployment's budget leaves the server."""
    assert config.gpu_memory is not None, "asked of a deployment's budget only"
    memory_bytes = parse_bytes(config.gpu_memory, "--gpu-memory")
    overhead_bytes = parse_bytes(config.overhead, "--overhead")
    return Room(memory_bytes, config.gpu_memory_utilization, overhead_bytes)


def unit_costs(config: CompressConfig, shape: ModelShape, units: UnitTable) -> Tensor:
    """`(N,)` float64 costs; units outside the targets cost nothing and are always kept.

    So do KV groups where only some layers see a window. Costs lie on the grid on which the budget
    adds them up, so their sum is the budget's total.
    """
    costs = _costs_by_model(config, shape, units)
    if config.targets != "both" or shape.windows.are_mixed:
        costs = torch.where(units.is_kv == (config.targets == "kv"), costs, 0.0)
    return exactly_summable(costs)


def _costs_by_model(config: CompressConfig, shape: ModelShape, units: UnitTable) -> Tensor:
    ffn, kv = float(shape.ffn_parameters), float(shape.kv_parameters)
    weight_bytes = shape.bytes_per_parameter
    token_bytes = 2 * shape.head_dim * KV_BYTES.get(config.kv_dtype, weight_bytes)  # key and value
    match config.cost_model:
        case "parameters":
            pass
        case "kv-bytes":
            ffn, kv = 0.0, token_bytes
        case "memory":
            tokens = config.cached_tokens
            tokens = load_of(config).cached_tokens(shape.windows) if tokens is None else tokens
            ffn, kv = ffn * weight_bytes, kv * weight_bytes + token_bytes * tokens
        case "latency":
            time = time_budget(config)
            assert time is not None, "the cost is a time"
            ffn = 1e9 * (time.ffn_seconds / sum(units.ffn_channels))
            kv = 1e9 * (time.kv_seconds / sum(units.kv_groups))
        case own:
            return _own_costs(own, units, shape)
    return units.spread([ffn] * units.layers, [kv] * units.layers)


def _own_costs(reference: str, units: UnitTable, shape: ModelShape) -> Tensor:
    """`(N,)` costs of the user's own `function(units, shape)`."""
    option = f"--cost {reference}"
    costs = own_values(option, "function(units, shape)", units.size, units, shape)
    # What is not a number fails all comparisons. Smaller costs would be rounded away in the sum.
    largest = float(torch.where(costs <= LARGEST_COST, costs, 0.0).max())
    smallest = max(1 / LARGEST_COST, largest / LARGEST_RANGE)
    wrong = ~((costs == 0) | ((costs >= smallest) & (costs <= LARGEST_COST)))
    if wrong.any():
        unit = int(wrong.nonzero()[0])
        raise InputError(
            f"{option} returned {float(costs[unit])} for unit {unit}: costs are 0, or "
            f"from {smallest:g} (the largest / {LARGEST_RANGE:g}) to {LARGEST_COST:g}"
        )
    return costs
