"""Compress the embedded model from Python, under your own cost function.

python examples/own_cost.py OUTPUT
"""

import sys
import tempfile
from pathlib import Path

from torch import Tensor

from grasp_deploy import CompressConfig, compress
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.demo.run import MODEL, write_text
from grasp_deploy.pruning.units import UnitTable


def slow_second_half(units: UnitTable, shape: ModelShape) -> Tensor:
    """Parameters of each unit, `(N,)`; four times as dear in the second half of the layers.

    Use case: a pipeline over two GPUs, where the second is a quarter as fast.
    """
    d, group, head = shape.hidden_size, shape.query_heads_per_group, shape.head_dim
    factors = [1.0 if 2 * layer < units.layers else 4.0 for layer in range(units.layers)]
    ffn_costs = [3 * d * factor for factor in factors]
    kv_costs = [(2 * group + 2) * head * d * factor for factor in factors]
    return units.spread(ffn_costs, kv_costs)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        calibration, _ = write_text(Path(folder))
        config = CompressConfig(
            model=str(MODEL),
            keep=0.6,
            cost="own_cost:slow_second_half",  # any importable package.module:function
            calibration=(str(calibration),),
            method="progressive",
            rounds=1,  # seconds, for an example
            compensation=False,
            scale_epochs=0,
            sequences=16,
            sequence_length=128,
            batch_size=4,
        )
        compressed = compress(config, sys.argv[1])
    layers = compressed.pruned.layers
    middle = len(layers) // 2
    for name, half in (("first", layers[:middle]), ("second", layers[middle:])):
        channels = sum(layer.intermediate_size for layer in half)
        groups = sum(layer.num_key_value_heads for layer in half)
        print(f"{name} half of the layers: {channels} FFN channels, {groups} KV groups")
