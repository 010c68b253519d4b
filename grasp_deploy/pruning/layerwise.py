"""Run a model one decoder layer at a time, and see its hidden states and the gates' inputs.

Every supported family adds both to the hidden states in the same way:

    middle = hidden + m · behind(attention(before(hidden)))
    output = middle + m · behind(mlp(before(middle)))

The norms `before` and `behind` are those of `norms`; most families have none behind. `m` is
Granite's residual multiplier, and 1 elsewhere.

Hidden states of all batches go through a layer before the next layer starts. What is gathered of
a layer may therefore be large: it is needed for one layer at a time.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from grasp_deploy.pruning.layout import attention_of, decoder_layers, installed, norms_in
from grasp_deploy.pruning.team import Team

Call = dict[str, Any]  # keyword arguments of a decoder layer, such as rotary embeddings and masks


class Passed(NamedTuple):
    """What attention or the MLP makes of `(B, T, d)` hidden states."""

    added: Tensor  # (B, T, d), to the hidden states
    inputs: Tensor  # (B, T, width), of its output projection
    output: Tensor  # (B, T, d), of its output projection


Half = Callable[[Tensor], Passed]


def embedded(model: nn.Module, batches: list[Tensor], team: Team) -> list[Tensor]:
    """`(B, T, d)` hidden states before the first layer."""
    embed: nn.Module = model.model.embed_tokens  # type: ignore[union-attr,assignment]
    with team.gathered(embed):
        factor = getattr(model.config, "embedding_multiplier", 1.0)
        return [embed(batch) * factor for batch in batches]


def half_layers(
    model: nn.Module, batches: list[Tensor], team: Team
) -> Iterator[tuple[int, list[Half]]]:
    """Yield each segment, in the order of the forward pass, and its half layer for each batch."""
    calls, factor = _layer_calls(model, batches[0][:1]), residual_multiplier(model)
    norms = norms_in(model)
    for index, (layer, call) in enumerate(zip(decoder_layers(model), calls, strict=True)):
        before = [layer.get_submodule(name) for name in norms.before]
        behind = [layer.get_submodule(name) for name in norms.behind] or 2 * [nn.Identity()]
        ends = dict(layer.mlp.named_children())
        last = ends.get("down_proj") or ends["experts"]  # experts are never refitted
        attention = attention_of(layer)
        projection = getattr(attention, "o_proj", None) or attention.out_proj
        for place, (branch, linear, given) in enumerate(
            ((attention, projection, call), (layer.mlp, last, {}))
        ):
            half = partial(_pass, branch, linear, before[place], behind[place], given, factor)
            with team.gathered(branch):
                yield 2 * index + 1 - place, [half for _ in batches]


def residual_multiplier(model: nn.Module) -> float:
    """What multiplies the outputs of attention and MLP before they are added."""
    return getattr(model.config, "residual_multiplier", 1.0)


def advance(hidden: list[Tensor], halves: list[Half], outputs: list[Tensor] | None = None) -> None:
    """Run the hidden states of all batches through a half layer, in place.

    What its output projection returns is appended to `outputs`.
    """
    for place, half in enumerate(halves):
        passed = half(hidden[place])
        hidden[place] = hidden[place] + passed.added
        if outputs is not None:
            outputs.append(passed.output)


@torch.no_grad()
def _layer_calls(model: nn.Module, ids: Tensor) -> list[Call]:
    """Keyword arguments of each layer for `(1, T)` ids.

    They depend on `T` alone, since no sequence is padded, and serve a batch of any size.
    """
    layers, calls = decoder_layers(model), []

    def keep(_layer: nn.Module, _inputs: tuple[Tensor], call: Call) -> None:
        calls.append(call)

    with installed(layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers):
        model.model(input_ids=ids, use_cache=False)  # type: ignore[operator]
    return calls


def _pass(
    branch: Any,
    linear: nn.Module,
    before: nn.Module,
    behind: nn.Module,
    call: Call,
    factor: float,
    hidden: Tensor,
) -> Passed:
    seen: list[Tensor] = []

    def keep(_linear: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        seen.extend((inputs[0], output))

    with installed([linear.register_forward_hook(keep)]):
        returned = branch(before(hidden), **call)
    added = returned if isinstance(returned, Tensor) else returned[0]  # attention returns more
    return Passed(behind(added) * factor, *seen)
