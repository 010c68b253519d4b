"""Text for criteria, and a tiny model's coupled weights picked by hand."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from grasp_deploy.pruning.criteria.batches import CalibrationText
from tests.pruning.tiny_units import CHANNELS, GROUP_WIDTH, GROUPS, HEAD_DIM, LAYERS, token_ids

SEQUENCES = token_ids(5, 16)
TEXT = CalibrationText(SEQUENCES, 2)


def units_by_hand() -> Iterator[tuple[list[tuple[str, slice]], tuple[str, slice]]]:
    """For each unit of the flat axis the rows and the columns that go with it, by linear layer."""
    for layer in range(LAYERS):
        mlp, attention = f"model.layers.{layer}.mlp", f"model.layers.{layer}.self_attn"
        for channel in range(CHANNELS):
            own = slice(channel, channel + 1)
            rows = [(f"{mlp}.gate_proj", own), (f"{mlp}.up_proj", own)]
            yield rows, (f"{mlp}.down_proj", own)
        for group in range(GROUPS):
            query = slice(GROUP_WIDTH * group, GROUP_WIDTH * (group + 1))
            key = slice(HEAD_DIM * group, HEAD_DIM * (group + 1))
            places = (("q", query), ("k", key), ("v", key))
            rows = [(f"{attention}.{name}_proj", place) for name, place in places]
            yield rows, (f"{attention}.o_proj", query)


def score_by_hand(values: dict[str, Tensor], of_vector: Callable[[Tensor], Tensor]) -> Tensor:
    """`(N,)` sums of `of_vector` over a unit's rows, each with its bias, and its columns."""
    scores = []
    for rows, (name, columns) in units_by_hand():
        vectors = list(values[f"{name}.weight"][:, columns].T)
        for linear, places in rows:
            matrix = values[f"{linear}.weight"][places]
            if f"{linear}.bias" in values:
                matrix = torch.cat([matrix, values[f"{linear}.bias"][places, None]], dim=1)
            vectors += matrix
        scores.append(torch.stack([of_vector(vector) for vector in vectors]).sum())
    return torch.stack(scores)
