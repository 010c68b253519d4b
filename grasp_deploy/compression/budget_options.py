"""From the options of a budget to the costs of all units and the limit on their sum."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from grasp_deploy.checkpoint.footprint import (
    KV_BYTES,
    Load,
    Room,
    deployment_memory,
)
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.compression.own_function import own_values
from grasp_deploy.compression.time_budget import TimeBudget, time_budget
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import format_bytes, parse_bytes
from grasp_deploy.pruning.budget import Budget, BudgetError, exactly_summable, make_budget
from grasp_deploy.pruning.costs import (
    Widths,
    kv_bytes_cost,
    latency_cost,
    memory_cost,
    parameters_cost,
)
from grasp_deploy.pruning.units import UnitTable

LARGEST_COST = 1e18  # so that float32 holds a score per cost
LARGEST_RANGE = 1e9  # between the largest and the smallest cost


def unit_table(shape: ModelShape) -> UnitTable:
    """Flat axis of a dense model's units."""
    return UnitTable.of_layers(
        [(layer.intermediate_size, layer.num_key_value_heads) for layer in shape.layers]
    )


def budget_for(config: CompressConfig, shape: ModelShape, device: torch.device) -> Budget:
    """Checked budget for a dense model's shape; InputError names the next possible one."""
    refuse_pruned(config, shape)
    units, time = unit_table(shape), time_budget(config)
    costs = unit_costs(config, shape, units)
    total = float(costs.sum())
    ffn_multiple, kv_multiple = config.multiples(max(units.ffn_channels))
    limit = _limit(config, shape, total, time)
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
            if time is not None and config.in_time:
                raise time.beyond_reach(error.smallest_limit, total) from None
            smallest = _as_option(config, shape, total, error.smallest_limit)
            cause = str(error)
            if limit < 0:  # which only a budget in bytes can be
                unit_bytes = shape.bytes_per_parameter if config.weights else 1
                excess = format_bytes(int(-limit * unit_bytes))
                what = "vLLM's own, activations, embeddings" if config.gpu_memory else "embeddings"
                cause = f"what no pruning removes ({what}) takes {excess} more than there is"
            raise InputError(f"{cause}: the smallest possible is {smallest}") from None
        size = config.tensor_parallel
        cause = f" (--tensor-parallel {size} asks for multiples of {size})" if size > 1 else ""
        raise InputError(f"{error}{cause}") from None


def refuse_pruned(config: CompressConfig, shape: ModelShape) -> None:
    """InputError for a model whose layers differ already."""
    if shape.pruned:
        raise InputError(
            f"{config.model} is already pruned: name the model that it came from (its plan does), "
            "with a smaller budget"
        )


def _limit(
    config: CompressConfig, shape: ModelShape, total: float, time: TimeBudget | None
) -> float:
    """Limit `B`, in the unit of the costs."""
    if config.keep is not None:
        # The decimal that the user wrote: 0.57 of 10,000 is 5,700 and not a hair less.
        return float(Fraction(str(config.keep)) * Fraction(total))
    if config.gpu_memory is not None:
        return _limit_in_room(config, shape, total)
    if time is not None and config.in_time:
        return time.limit(total)
    if config.walks:  # the first step of a bound on the loss
        return total * (1 - config.bound_step)
    option, dense, fixed, scale = _in_bytes(config, shape, total)
    text = config.weights or config.kv_per_token or ""
    asked = parse_bytes(text, option)
    if asked > dense:
        raise InputError(
            f"{option} {text} is more than the dense model's {format_bytes(dense)}: ask for less, "
            "or serve the model as it is"
        )
    return (asked - fixed) / scale


def load_of(config: CompressConfig) -> Load:
    """The load that a deployment's budget holds."""
    assert config.concurrency is not None and config.context is not None, "checked with the config"
    width = KV_BYTES.get(config.kv_dtype)
    return Load(config.concurrency, config.context, width)


def room_of(config: CompressConfig) -> Room:
    """The memory that a deployment's budget leaves the server."""
    assert config.gpu_memory is not None, "asked of a deployment's budget only"
    memory_bytes = parse_bytes(config.gpu_memory, "--gpu-memory")
    overhead_bytes = parse_bytes(config.overhead, "--overhead")
    return Room(memory_bytes, config.gpu_memory_utilization, overhead_bytes)


def _limit_in_room(config: CompressConfig, shape: ModelShape, total: float) -> float:
    """What the dense model's deployment may still cost, so that all of it fits the room."""
    room = room_of(config)
    dense = deployment_memory(shape, load_of(config), room.overhead_bytes)
    if dense.total_bytes <= room.usable_bytes:
        raise InputError(
            f"--gpu-memory {config.gpu_memory} holds {config.model} with this load as it is, in "
            f"{format_bytes(dense.total_bytes)}: serve it unpruned, or ask for less memory or a "
            "larger load"
        )
    return room.usable_bytes - (dense.total_bytes - total)


def _as_option(config: CompressConfig, shape: ModelShape, total: float, limit: float) -> str:
    """A limit written as the option that sets it, rounded up."""
    if config.keep is not None or config.walks:
        steps = math.ceil(10_000 * Fraction(limit) / Fraction(total))
        return f"--keep {steps / 10_000:g}"
    if config.gpu_memory is not None:
        room = room_of(config)
        dense = deployment_memory(shape, load_of(config), room.overhead_bytes)
        size = room.memory_for(dense.total_bytes - total + limit)
        return f"--gpu-memory {size} ({format_bytes(size)})"
    option, _, fixed, scale = _in_bytes(config, shape, total)
    size = math.ceil(fixed + limit * scale)
    return f"{option} {size} ({format_bytes(size)})"


def _in_bytes(
    config: CompressConfig, shape: ModelShape, total: float
) -> tuple[str, int, float, int]:
    """The option of a budget in bytes, with three sizes: total, always kept, and one unit of cost.

    All in bytes, so that a limit on costs is `(asked - always kept) / one unit of cost`.
    """
    if config.weights is None:
        return "--kv-per-token", shape.kv_bytes_per_token(), 0.0, 1
    scale = shape.bytes_per_parameter
    return "--weights", shape.weight_bytes, shape.weight_bytes - total * scale, scale


def unit_costs(config: CompressConfig, shape: ModelShape, units: UnitTable) -> Tensor:
    """`(N,)` float64 costs; units outside the targets cost nothing and are always kept.

    They lie on the grid on which the budget adds them up, so their sum is the budget's total.
    """
    costs = _costs_by_model(config, shape, units)
    costs = torch.where(units.is_kv, costs * config.kv_cost_factor, costs)
    if config.targets != "both":
        costs = torch.where(units.is_kv == (config.targets == "kv"), costs, 0.0)
    return exactly_summable(costs)


def _costs_by_model(config: CompressConfig, shape: ModelShape, units: UnitTable) -> Tensor:
    widths = Widths(
        hidden_size=shape.hidden_size,
        head_dim=shape.head_dim,
        query_heads_per_group=shape.query_heads_per_group,
        qkv_bias=shape.qkv_bias,
        mlp_bias=shape.mlp_bias,
        bytes_per_parameter=shape.bytes_per_parameter,
        bytes_per_kv_value=KV_BYTES.get(config.kv_dtype, shape.bytes_per_parameter),
    )
    match config.cost_model:
        case "parameters":
            return parameters_cost(units, widths)
        case "kv-bytes":
            return kv_bytes_cost(units, widths)
        case "latency":
            time = time_budget(config)
            assert time is not None, "the cost is a time"
            return latency_cost(units, time.ffn_seconds, time.kv_seconds)
        case "memory":
            tokens = config.cached_tokens
            if tokens is None:
                tokens = load_of(config).cached_tokens
            return memory_cost(units, widths, tokens)
    return _own_costs(config.cost_model, units, shape)


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
