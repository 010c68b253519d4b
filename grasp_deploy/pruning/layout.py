"""The prunable linear layers, listed once, and hooks on them that are always removed.

Rows and columns that go when a unit goes:

    FFN channel   a row of gate_proj and of up_proj, a column of down_proj
    expert        its gate_proj, up_proj and down_proj, and a row of the router
    KV group      D rows of k_proj and of v_proj, G·D rows of q_proj, G·D columns of o_proj

With an output gate q_proj has 2·G·D rows to a group. Linear attention has no KV groups.
LLM-Pruner calls them coupled structures (Ma et al. 2023, section 3.1). A row takes its bias along.
The biases of down_proj and o_proj and the q/k norms always stay.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from grasp_deploy.pruning.norms import Norms, norms_of

OnTensor = Callable[[int, Tensor], Tensor | None]
Units = Literal["channels", "groups"]  # FFN channels or experts, and KV groups


@dataclass(frozen=True)
class PrunableLinear:
    """A linear layer that each decoder layer has, and the rows or columns that it can lose."""

    name: str  # within the decoder layer
    units: Units
    by_rows: bool


PRUNABLE_LINEARS = (
    PrunableLinear("mlp.gate_proj", "channels", True),
    PrunableLinear("mlp.up_proj", "channels", True),
    PrunableLinear("mlp.down_proj", "channels", False),
    PrunableLinear("self_attn.q_proj", "groups", True),
    PrunableLinear("self_attn.k_proj", "groups", True),
    PrunableLinear("self_attn.v_proj", "groups", True),
    PrunableLinear("self_attn.o_proj", "groups", False),
)
# The output projections, whose inputs the gates multiply, in the order of the segments.
OUTPUT_PROJECTIONS = tuple(linear.name for linear in PRUNABLE_LINEARS if not linear.by_rows)
ROUTER = "mlp.gate"  # without a bias, and with a row for each expert
LINEAR_ATTENTION = "linear_attn"  # in the place of self_attn, whole


def decoder_layers(model: nn.Module) -> Any:
    """The decoder layers of a causal language model of any supported family."""
    return model.model.layers  # type: ignore[union-attr]


def norms_in(model: nn.Module) -> Norms:
    """The norms of a causal language model of any supported family."""
    config: Any = model.config
    return norms_of(config.model_type)


def device_of(model: nn.Module) -> torch.device:
    """The device that a model computes on: its norms lie there, where other weights may not."""
    return next(p.device for name, p in model.named_parameters() if "input_layernorm" in name)


def output_projections(model: nn.Module) -> dict[int, nn.Linear]:
    """The output projection of each segment but those of experts and empty ones, in order."""
    found = _in_segments(model, OUTPUT_PROJECTIONS)
    others = len(routers(model)) + len(_in_segments(model, (LINEAR_ATTENTION,)))
    assert len(found) + others == 2 * len(decoder_layers(model)), "a segment has none"
    return found


def routers(model: nn.Module) -> dict[int, nn.Module]:
    """What chooses among experts, in each segment that holds some."""
    return _in_segments(model, (ROUTER,))


def _in_segments(model: nn.Module, names: tuple[str, ...]) -> dict[int, Any]:
    """The modules of these names, of an MLP and of attention, where a layer has them."""
    layers = enumerate(dict(layer.named_modules()) for layer in decoder_layers(model))
    return {
        2 * index + place: modules[name]
        for index, modules in layers
        for place, name in enumerate(names)
        if name in modules
    }


def half_of(model: nn.Module, segment: int) -> nn.Module:
    """The attention or the MLP that the units of a segment belong to."""
    layer = decoder_layers(model)[segment // 2]
    return attention_of(layer) if segment % 2 else layer.mlp


def attention_of(layer: nn.Module) -> Any:
    """The attention of a decoder layer, linear or not."""
    return getattr(layer, LINEAR_ATTENTION, None) or layer.self_attn


def features_of(units: Tensor, width: int) -> Tensor:
    """Indices of the rows or columns of `(n,)` units, `width` each, in order."""
    return (units[:, None] * width + torch.arange(width, device=units.device)).flatten()


def kept_places(kept: Tensor, size: int) -> Tensor:
    """Indices, among `size` rows or columns, of those of the kept ones of `(n,)` units."""
    return features_of(kept.nonzero().flatten(), size // len(kept))


@contextmanager
def installed(hooks: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end of the block; a lazy iterable installs them one by one."""
    with ExitStack() as stack:
        for hook in hooks:
            stack.callback(hook.remove)
        yield


def on_inputs(modules: Mapping[int, nn.Module], action: OnTensor) -> AbstractContextManager[None]:
    """Call `action(index, x)` with the first input of modules; a tensor returned replaces it."""
    return installed(
        module.register_forward_pre_hook(lambda _, inputs, i=index: action(i, inputs[0]))
        for index, module in modules.items()
    )


def on_outputs(
    modules: Mapping[int, nn.Module], action: Callable[[int, Any], Any]
) -> AbstractContextManager[None]:
    """Call `action(index, y)` with the output of modules; what is returned replaces it."""
    return installed(
        module.register_forward_hook(lambda _, _inputs, output, i=index: action(i, output))
        for index, module in modules.items()
    )
