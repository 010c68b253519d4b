"""Text for criteria, and a tiny model's coupled weights picked by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grasp_deploy.pruning.criteria.batches import CalibrationText
from tests.pruning.tiny_units import CHANNELS, GROUP_WIDTH, GROUPS, HEAD_DIM, LAYERS, token_ids
from tests.tiny import rows_of

SEQUENCES = token_ids(5, 16)
TEXT = CalibrationText(SEQUENCES, 2)


def vectors_by_hand(model: PreTrainedModel) -> Iterator[list[list[tuple[str, int, int]]]]:
    """For each unit of the flat axis its vectors, each as (parameter name, axis, index) parts."""
    named = dict(model.named_parameters())

    def rows(prefix: str, indices: list[int]) -> list[list[tuple[str, int, int]]]:
        names = [name for name in (f"{prefix}.weight", f"{prefix}.bias") if name in named]
        return [[(name, 0, index) for name in names] for index in indices]

    def columns(prefix: str, indices: list[int]) -> list[list[tuple[str, int, int]]]:
        return [[(f"{prefix}.weight", 1, index)] for index in indices]

    for layer in range(LAYERS):
        mlp, attention = f"model.layers.{layer}.mlp", f"model.layers.{layer}.self_attn"
        for channel in range(CHANNELS):
            yield [
                *rows(f"{mlp}.gate_proj", [channel]),
                *rows(f"{mlp}.up_proj", [channel]),
                *columns(f"{mlp}.down_proj", [channel]),
            ]
        for group in range(GROUPS):
            query, key = rows_of([group], GROUP_WIDTH), rows_of([group], HEAD_DIM)
            yield [
                *rows(f"{attention}.q_proj", query),
                *rows(f"{attention}.k_proj", key),
                *rows(f"{attention}.v_proj", key),
                *columns(f"{attention}.o_proj", query),
            ]


def score_by_hand(
    model: PreTrainedModel, values: dict[str, Tensor], of_vector: Callable[[Tensor], Tensor]
) -> Tensor:
    """`(N,)` sums over a unit's vectors of `of_vector(its values)`."""
    scores = []
    for vectors in vectors_by_hand(model):
        parts = [
            torch.cat([values[name].select(axis, index).flatten() for name, axis, index in vector])
            for vector in vectors
        ]
        scores.append(sum(of_vector(part) for part in parts))
    return torch.stack([torch.as_tensor(score) for score in scores])
