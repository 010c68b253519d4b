"""The tiny models' units, text for them, and what is common to the tests of the maths."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grasp_deploy.pruning.budget import make_budget
from grasp_deploy.pruning.training import freeze
from grasp_deploy.pruning.units import UnitTable
from tests.tiny import VARIANTS, tiny_model

LAYERS, CHANNELS, GROUPS = 3, 96, 2
UNITS = UnitTable.of_layers([(CHANNELS, GROUPS)] * LAYERS)
COSTS = torch.where(UNITS.is_kv, 12_288.0, 192.0)
BUDGET = make_budget(UNITS, COSTS, 0.5 * float(COSTS.sum()))
EXPERTS = UnitTable.of_layers([(8, GROUPS)] * LAYERS, experts_per_token=2)
HEAD_DIM = 32
GROUP_WIDTH = 2 * HEAD_DIM  # G·D


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def token_ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, generator=generator(seed))


def frozen(name: str = "llama", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A variant of the tiny models, frozen as learning and criteria need it."""
    model = tiny_model(**VARIANTS[name], dtype=dtype)
    freeze(model)
    return model


def hooks_of(model: nn.Module) -> int:
    """Forward hooks and gradient hooks that are on a model."""
    on_modules = sum(
        len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()
    )
    on_parameters = sum(
        len(parameter._post_accumulate_grad_hooks or ()) for parameter in model.parameters()
    )
    return on_modules + on_parameters
