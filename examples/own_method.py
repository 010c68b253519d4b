"""Compress the embedded model from Python, by your own method.

python examples/own_method.py OUTPUT
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from grasp_deploy import CompressConfig, compress
from grasp_deploy.demo.run import MODEL, write_text
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.layout import output_projections


@torch.no_grad()
def first_layers(model: nn.Module, budget: Budget, text: CalibrationText) -> Tensor:
    """Mean squared norm of each unit's output columns; doubled in the first half of the layers."""
    scores = []
    for segment, linear in output_projections(model).items():
        size = budget.units.segment_sizes[segment]
        squares = linear.weight.float().square().sum(0).view(size, -1).mean(1)
        scores.append(squares * (2.0 if segment < budget.units.layers else 1.0))
    return torch.cat(scores)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        calibration, _ = write_text(Path(folder))
        config = CompressConfig(
            model=str(MODEL),
            keep=0.6,
            method="own_method:first_layers",  # any importable package.module:function
            calibration=(str(calibration), "self=0"),
            sequences=16,
            sequence_length=128,
            batch_size=4,
        )
        compressed = compress(config, sys.argv[1])
    for layer in compressed.pruned.layers:
        print(f"{layer.intermediate_size} FFN channels, {layer.num_key_value_heads} KV groups")
