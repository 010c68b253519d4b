"""A pruned config.json without weights: a random mask under the same budget rules as `compress`.

It serves to measure size and speed where the weights are not at hand: a bench fills the config with
random weights. The text that such a model writes is noise.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.checkpoint.read.validate import config_and_shape, refuse_quantised
from grasp_deploy.checkpoint.write.sidecar_files import pruned_config
from grasp_deploy.compression.budget_options import budget_for, shape_within, written
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import write_json
from grasp_deploy.files.outputs import staged_directory
from grasp_deploy.pruning.budget import Budget, BudgetError, make_budget
from grasp_deploy.pruning.projection import project


def synthesize(config: CompressConfig, output: Path, *, kv_keep: float | None = None) -> ModelShape:
    """Write the config.json of `config.model` pruned by a random mask; returns its shape.

    `config.model` is a config.json, a model folder or a hub id; the other options that matter are
    budget, shapes and seed. `kv_keep` is the share of KV groups to keep, by number; FFN channels
    then take the rest of the budget. The folder `output` appears whole or not at all.
    """
    if output.exists():
        raise InputError(f"the output {output} exists: name another folder")
    stated, dense = config_and_shape(resolve_config(config.model, config.revision))
    refuse_quantised(dense)
    budget = budget_for(config, dense, torch.device("cpu"))
    generator = torch.Generator().manual_seed(config.seed)
    scores = torch.rand(budget.units.size, generator=generator)
    if kv_keep is not None:
        scores = _with_kv_share(budget, scores, kv_keep, config)
    pruned = shape_within(budget, dense, scores)
    write_shape(stated, pruned, output)
    return pruned


def write_shape(stated: dict[str, Any], pruned: ModelShape, output: Path) -> None:
    """Write the folder `output` with a config.json: the dense model's, with these layers."""
    with staged_directory(output) as staging:
        write_json(staging / "config.json", pruned_config(stated, pruned))
        written = model_shape(read_config(staging))
        assert written == pruned, "what was written has another shape"


def _with_kv_share(
    budget: Budget, scores: Tensor, kv_keep: float, config: CompressConfig
) -> Tensor:
    """`(N,)` scores that keep a share of the KV groups, and the FFN channels that still fit."""
    is_kv = budget.units.is_kv
    try:  # a budget of KV groups alone
        of_groups = make_budget(
            budget.units,
            is_kv.double(),
            round(kv_keep * int(is_kv.sum())),
            kv_multiple=budget.kv_multiple,
            seed=config.seed,
        )
        kept = project(scores, of_groups)
        scores = torch.where(is_kv, torch.where(kept, 2.0, -1.0), scores)
        if (project(scores, budget) & is_kv).equal(kept & is_kv):
            return scores
        reason = "FFN channels need more than is left, or less"
    except BudgetError as error:
        reason = str(error)
    raise InputError(
        f"{written(config)} and --kv-keep {kv_keep:g} do not go together ({reason}): change one"
    )
