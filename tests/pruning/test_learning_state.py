"""The learning state: a saved average that lacks a tensor, or has another shape, is refused."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grasp_deploy.compression.resume import Workspace
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.learning_state import LearningState


@pytest.mark.parametrize("mean", [{}, {"mean_values": torch.zeros(3)}], ids=["missing", "short"])
def test_a_saved_average_that_is_damaged_is_refused(
    mean: dict[str, Tensor], tmp_path: Path
) -> None:
    state, workspace = LearningState(torch.zeros(5), 0.1), Workspace(tmp_path, ExitStack())
    assert "mean_values" not in state.tensors()
    state.average()
    workspace.save("gates", state, 1.0)
    assert workspace.restore("gates", LearningState(torch.zeros(5), 0.1)) == 1
    tensors = state.tensors()
    del tensors["mean_values"]
    workspace.save_tensors("gates", tensors | mean, {})
    with pytest.raises(InputError, match=r"gates.safetensors, .* is damaged: start over"):
        workspace.restore("gates", LearningState(torch.zeros(5), 0.1))
