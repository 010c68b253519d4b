"""From the options of a budget to costs and a limit on the flat axis of units."""

from __future__ import annotations

import importlib
import math
import sys
from contextlib import redirect_stdout, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import format_bytes, parse_bytes
from grasp_deploy.pruning.costs import Widths, kv_bytes_cost, memory_cost, parameters_cost
from grasp_deploy.pruning.projection import Budget, BudgetError, exactly_summable, make_budget
from grasp_deploy.pruning.units import UnitTable


def unit_table(shape: ModelShape) -> UnitTable:
    """The flat axis of a dense model."""
    return UnitTable.of_layers(
        [(layer.intermediate_size, layer.num_key_value_heads) for layer in shape.layers]
    )


def budget_for(config: CompressConfig, shape: ModelShape, device: torch.device) -> Budget:
    """The checked budget of a config for a model's shape.

    Raises InputError that names the smallest or the largest budget that this model allows.
    """
    units = unit_table(shape)
    costs = unit_costs(config, shape, units)
    ffn_multiple, kv_multiple = config.effective_multiples
    try:
        return make_budget(
            units,
            costs,
            _limit(config, shape, float(costs.sum())),
            ffn_multiple=ffn_multiple,
            kv_multiple=kv_multiple,
            seed=config.seed,
            device=device,
        )
    except BudgetError as error:
        if error.smallest_limit is None:
            size = config.tensor_parallel
            cause = f" (--tensor-parallel {size} asks for multiples of {size})" * (size > 1)
            raise InputError(f"{error}{cause}") from None
        smallest = _as_option(config, shape, float(costs.sum()), error.smallest_limit)
        raise InputError(f"{error}: the smallest possible is {smallest}") from None


def unit_costs(config: CompressConfig, shape: ModelShape, units: UnitTable) -> Tensor:
    """`(N,)` float64 costs; units that are no target cost nothing, so that they stay.

    They are on the grid on which the budget adds them up, so that their sum is the budget's total.
    """
    costs = _raw_costs(config, shape, units)
    costs = torch.where(units.is_kv, costs * config.kv_cost_factor, costs)
    if config.targets != "both":
        costs = torch.where(units.is_kv == (config.targets == "kv"), costs, 0.0)
    return exactly_summable(costs)


def _raw_costs(config: CompressConfig, shape: ModelShape, units: UnitTable) -> Tensor:
    widths = Widths(
        hidden_size=shape.hidden_size,
        head_dim=shape.head_dim,
        query_heads_per_group=shape.query_heads_per_group,
        qkv_bias=shape.qkv_bias,
        mlp_bias=shape.mlp_bias,
        bytes_per_parameter=shape.bytes_per_parameter,
        bytes_per_kv_value=shape.bytes_per_parameter,
    )
    match config.cost_model:
        case "parameters":
            return parameters_cost(units, widths)
        case "kv-bytes":
            return kv_bytes_cost(units, widths)
        case "memory":
            assert config.cached_tokens is not None, "checked with the config"
            return memory_cost(units, widths, config.cached_tokens)
    return _custom_costs(config.cost_model, units, shape)


def _custom_costs(reference: str, units: UnitTable, shape: ModelShape) -> Tensor:
    """Costs from the user's own `function(units, shape)`, looked up from the working folder on."""
    module_name, _, function_name = reference.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        raise InputError(
            f"--cost {reference} cannot be imported ({type(error).__name__}: {error}): "
            "give package.module:function, importable from here"
        ) from None
    finally:
        with suppress(ValueError):  # its own affair, if it took that out
            sys.path.remove(str(Path.cwd()))
    try:
        with redirect_stdout(sys.stderr):  # stdout is for our own results
            values = function(units, shape)
        costs = torch.as_tensor(values, dtype=torch.float64).to_dense().detach().cpu()
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        raise InputError(
            f"--cost {reference} failed with {type(error).__name__}: {error}; it is called as "
            "function(units, shape) and returns one number per unit"
        ) from None
    _check_custom(reference, costs, units)
    return costs


def _check_custom(reference: str, costs: Tensor, units: UnitTable) -> None:
    if tuple(costs.shape) != (units.size,):
        raise InputError(
            f"--cost {reference} returned shape {tuple(costs.shape)}: one number for each of the "
            f"{units.size} units is needed, shape ({units.size},)"
        )
    wrong = ~torch.isfinite(costs) | (costs < 0)
    if wrong.any():
        unit = int(wrong.nonzero()[0])
        raise InputError(
            f"--cost {reference} returned {float(costs[unit])} for unit {unit}: "
            "costs are finite and not negative"
        )
    total = float(costs.sum())
    if total and not 1e-100 < total < 1e100:
        raise InputError(
            f"--cost {reference} returned costs that sum to {total:g}: count in a unit that keeps "
            "the sum between 1e-100 and 1e100"
        )


def _limit(config: CompressConfig, shape: ModelShape, total: float) -> float:
    """`B` in the unit of the costs."""
    if config.keep is not None:
        # The decimal that the user wrote: 0.57 of 10,000 is 5,700 and not a hair less.
        return float(Fraction(str(config.keep)) * Fraction(total))
    if config.weights is not None:
        asked, dense = parse_bytes(config.weights, "--weights"), shape.weight_bytes
        _refuse_over_dense("--weights", config.weights, asked, dense)
        return (asked - _fixed_bytes(shape, total)) / shape.bytes_per_parameter
    assert config.kv_per_token is not None, "checked with the config"
    asked, dense = parse_bytes(config.kv_per_token, "--kv-per-token"), shape.kv_bytes_per_token()
    _refuse_over_dense("--kv-per-token", config.kv_per_token, asked, dense)
    return asked


def _fixed_bytes(shape: ModelShape, total: float) -> float:
    """Weight bytes that no mask removes: embeddings, norms, and units that are no target."""
    return shape.weight_bytes - total * shape.bytes_per_parameter


def _refuse_over_dense(option: str, text: str, asked: int, dense: int) -> None:
    if asked > dense:
        raise InputError(
            f"{option} {text} is more than the dense model's {format_bytes(dense)}: ask for less, "
            "or serve the model as it is"
        )


def _as_option(config: CompressConfig, shape: ModelShape, total: float, limit: float) -> str:
    """A limit as the option that would set it, rounded up."""
    if config.keep is not None:
        steps = math.ceil(10_000 * Fraction(limit) / Fraction(total))
        return f"--keep {steps / 10_000:g}"
    if config.weights is not None:
        size = math.ceil(_fixed_bytes(shape, total) + limit * shape.bytes_per_parameter)
        return f"--weights {size} ({format_bytes(size)})"
    return f"--kv-per-token {math.ceil(limit)} ({format_bytes(math.ceil(limit))})"


def budget_record(budget: Budget, mask: Tensor) -> dict[str, Any]:
    """What a mask spends of its budget, for plans and reports."""
    kept = budget.cost_of(mask)
    assert kept <= budget.limit, f"the mask costs {kept}, over the budget {budget.limit}"
    return {"limit": budget.limit, "kept_cost": kept, "total_cost": budget.total_cost}
