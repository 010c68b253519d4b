"""What quantising the matrices of a model's layers leaves: groups of columns, and bytes."""

import math
from collections.abc import Callable

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.pruning.layout import OUTPUT_PROJECTIONS

MATRIX = "_proj.weight"  # the end of the name of every tensor that is quantised
SPLIT = tuple(f"{name}.weight" for name in OUTPUT_PROJECTIONS)  # of which workers share the columns
GROUPS = (128, 64, 32)  # columns that share a scale of 4-bit weights, as vLLM's kernels support
PACK_BYTES, WEIGHTS_PER_PACK = 4, 8  # of 4-bit weights: eight of them in an int32
SHAPE_ENTRY_BYTES = 2 * 8  # two int64 beside each 4-bit matrix


def matrix_columns(shape: ModelShape) -> dict[str, int]:
    """Columns of every matrix that is quantised, by its name."""
    return {n: sizes[1] for n, sizes in shape.tensor_shapes().items() if n.endswith(MATRIX)}


def unlearnt(shape: ModelShape) -> int:
    """The number of matrices that AutoRound does not learn: those whose rows 32 does not divide."""
    sizes = shape.tensor_shapes().items()
    return sum(name.endswith(MATRIX) and dimensions[0] % 32 > 0 for name, dimensions in sizes)


def group_for(shape: ModelShape, workers: int = 1) -> int | None:
    """The widest of GROUPS that divides the columns of every matrix; None if none does.

    If there are some, the widest of those that also divide the columns of each worker.
    """
    columns = matrix_columns(shape)
    split = {n: c / workers if n.endswith(SPLIT) else c for n, c in columns.items()}
    counts = (split.values(), columns.values())
    return next((g for each in counts for g in GROUPS if not any(n % g for n in each)), None)


def eight_bit_bytes(shape: ModelShape) -> int:
    """Bytes with each matrix of the layers in 8 bits, and a scale for each of its rows.

    Embeddings, output projection, norms and biases stay as they are: llm-compressor's FP8_DYNAMIC.
    """
    return _quantised_bytes(shape, lambda columns: columns + shape.bytes_per_parameter)


def four_bit_bytes(shape: ModelShape, group: int) -> int:
    """Bytes with each matrix in 4 bits, and a scale for each group of a row's columns: W4A16."""

    def row_bytes(columns: int) -> int:
        packed_bytes = math.ceil(columns / WEIGHTS_PER_PACK) * PACK_BYTES
        return packed_bytes + math.ceil(columns / group) * shape.bytes_per_parameter

    return _quantised_bytes(shape, row_bytes, SHAPE_ENTRY_BYTES)


def _quantised_bytes(
    shape: ModelShape, row_bytes: Callable[[int], int], matrix_bytes: int = 0
) -> int:
    """Bytes of all tensors, the layers' matrices by `row_bytes(columns)` and `matrix_bytes`."""
    return sum(
        dimensions[0] * row_bytes(dimensions[1]) + matrix_bytes
        if name.endswith(MATRIX)
        else math.prod(dimensions) * shape.bytes_per_parameter
        for name, dimensions in shape.tensor_shapes().items()
    )
