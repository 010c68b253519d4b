"""Costs of all units under the cost model of a config, including the user's own functions."""

from __future__ import annotations

import importlib
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

import torch
from torch import Tensor

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.budget import exactly_summable
from grasp_deploy.pruning.costs import Widths, kv_bytes_cost, memory_cost, parameters_cost
from grasp_deploy.pruning.units import UnitTable


def unit_costs(config: CompressConfig, shape: ModelShape, units: UnitTable) -> Tensor:
    """`(N,)` float64 costs; units outside the targets cost nothing and are always kept.

    They lie on the grid on which the budget adds them up, so their sum is the budget's total.
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
    """`(N,)` costs of the user's own `function(units, shape)`, imported from the working folder."""
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
        with suppress(ValueError):
            sys.path.remove(str(Path.cwd()))
    try:
        with redirect_stdout(sys.stderr):  # stdout is reserved for results
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
