"""A pruned config.json without weights: a random mask under the same budget rules as `compress`.

It serves to measure size and speed where the weights are not at hand: a bench fills the config with
random weights. The text that such a model writes is noise.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.plan import pruned_layers
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.checkpoint.read.validate import config_and_shape, refuse_quantised
from grasp_deploy.checkpoint.write.sidecar_files import pruned_config
from grasp_deploy.compression.budget_options import budget_for, shape_within
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import write_json
from grasp_deploy.files.outputs import staged_directory
from grasp_deploy.pruning.budget import Budget, BudgetError, make_budget
from grasp_deploy.pruning.projection import project


def synthesize(config: CompressConfig, output: Path, *, kv_keep: float | None = None) -> ModelShape:
    """Write the config.json of `config.model` pruned by a random mask; returns its shape.

    `config.model` is a config.json, a model folder or a hub id; beside it, budget, shapes and seed
    matter. `kv_keep` is the share of all KV groups to keep, by count; FFN channels then take the
    rest of the budget. The folder `output` appears whole or not at all.
    """
    if output.exists():
        raise InputError(f"the output {output} exists: name another folder")
    stated, dense = config_and_shape(resolve_config(config.model, config.revision))
    refuse_quantised(dense)
    budget = budget_for(config, dense, torch.device("cpu"))
    generator = torch.Generator().manual_seed(config.seed)
    scores = torch.rand(budget.units.size, generator=generator)
    pruned = shape_within(budget, dense, scores)
    if kv_keep is not None:
        mask = _mask_with_kv_share(config, budget, scores, kv_keep)
        layers = pruned_layers(dense, budget.units.kept_per_layer(mask))
        pruned = replace(pruned, layers=layers)
    write_shape(stated, pruned, output)
    return pruned


def write_shape(stated: dict[str, Any], pruned: ModelShape, output: Path) -> None:
    """Write the folder `output` with a config.json: the dense model's, with these layers."""
    with staged_directory(output) as staging:
        write_json(staging / "config.json", pruned_config(stated, pruned))
        written = model_shape(read_config(staging))
        assert written == pruned, "what was written has another shape"


def _mask_with_kv_share(
    config: CompressConfig, budget: Budget, scores: Tensor, kv_keep: float
) -> Tensor:
    """`(N,)` mask that keeps a share of the KV groups, and the FFN channels that still fit."""
    units, is_kv = budget.units, budget.units.is_kv
    ffn_multiple, kv_multiple = config.multiples(max(units.ffn_channels))
    groups = round(kv_keep * int(is_kv.sum()))
    ffn_costs = torch.where(is_kv, 0.0, budget.costs)
    try:
        # Each kind has a budget of its own, in which units of the other kind cost nothing.
        kv_budget = make_budget(
            units, is_kv.double(), groups, kv_multiple=kv_multiple, seed=config.seed
        )
        kv_mask = project(scores, kv_budget)
        left = budget.limit - budget.cost_of(kv_mask & is_kv)
        ffn_budget = make_budget(
            units, ffn_costs, left, ffn_multiple=ffn_multiple, seed=config.seed
        )
    except BudgetError as error:
        raise InputError(
            f"--keep {config.keep} and --kv-keep {kv_keep:g} do not go together ({error}): "
            "change one"
        ) from None
    return kv_mask & project(scores, ffn_budget)
