"""The least that a gate-learning step must compute, on a model that has no gates."""

from __future__ import annotations

import copy

import torch.nn.functional as F
from torch import Tensor, nn

from grasp_deploy.pruning.layout import decoder_layers
from grasp_deploy.pruning.objective import language_loss


def twin(model: nn.Module) -> nn.Module:
    """The model once more, on the same weights, so that hooks on one are not on the other."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def lower_bound(model: nn.Module, ids: Tensor) -> None:
    """Forward and backward through the activations of all layers."""
    embeddings = model.get_input_embeddings()(ids).requires_grad_()  # type: ignore[operator]
    logits = model(inputs_embeds=embeddings, use_cache=False).logits[:, :-1]
    F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()).backward()


def tight_bound(model: nn.Module, ids: Tensor) -> None:
    """Forward, and backward as far as the first gate."""
    first_gate = decoder_layers(model)[0].self_attn.o_proj
    handle = first_gate.register_forward_pre_hook(
        lambda _module, inputs: (inputs[0].detach().requires_grad_(),)
    )
    language_loss(model, ids).backward()
    handle.remove()
