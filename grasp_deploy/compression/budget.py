"""The budget of a compression: the limit that its options state, on the flat axis of units."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.compression.unit_costs import unit_costs
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import format_bytes, parse_bytes
from grasp_deploy.pruning.budget import Budget, BudgetError, make_budget
from grasp_deploy.pruning.units import UnitTable


def unit_table(shape: ModelShape) -> UnitTable:
    """Flat axis of a dense model's units."""
    return UnitTable.of_layers(
        [(layer.intermediate_size, layer.num_key_value_heads) for layer in shape.layers]
    )


def budget_for(config: CompressConfig, shape: ModelShape, device: torch.device) -> Budget:
    """Checked budget for a model's shape; InputError names the smallest or largest one possible."""
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


def _limit(config: CompressConfig, shape: ModelShape, total: float) -> float:
    """Limit `B`, in the unit of the costs."""
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
    """Weight bytes that no mask removes: embeddings, norms and units outside the targets."""
    return shape.weight_bytes - total * shape.bytes_per_parameter


def _refuse_over_dense(option: str, text: str, asked: int, dense: int) -> None:
    if asked > dense:
        raise InputError(
            f"{option} {text} is more than the dense model's {format_bytes(dense)}: ask for less, "
            "or serve the model as it is"
        )


def _as_option(config: CompressConfig, shape: ModelShape, total: float, limit: float) -> str:
    """A limit written as the option that sets it, rounded up."""
    if config.keep is not None:
        steps = math.ceil(10_000 * Fraction(limit) / Fraction(total))
        return f"--keep {steps / 10_000:g}"
    if config.weights is not None:
        size = math.ceil(_fixed_bytes(shape, total) + limit * shape.bytes_per_parameter)
        return f"--weights {size} ({format_bytes(size)})"
    return f"--kv-per-token {math.ceil(limit)} ({format_bytes(math.ceil(limit))})"
