"""`grasp_deploy.register()` teaches transformers the pruned families."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import random_kept, slice_by_hand, tiny_model

pytestmark = pytest.mark.slow  # each starts an interpreter that imports transformers
LOAD = """
import sys
import grasp_deploy
assert "transformers" not in sys.modules
grasp_deploy.register()
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
assert AutoConfig.from_pretrained(sys.argv[1]).model_type == "grasp_qwen3"
for auto, name in ((AutoModel, "GraspQwen3Model"), (AutoModelForCausalLM, "GraspQwen3ForCausalLM")):
    model = type(auto.from_pretrained(sys.argv[1]))
    place = "grasp_deploy.checkpoint.format.modeling_grasp"
    assert (model.__module__, model.__name__) == (place, name)
"""


def test_pruned_checkpoints_load_without_remote_code(tmp_path: Path) -> None:
    dense = tiny_model("qwen3")
    slice_by_hand(dense, random_kept(dense.config)).save_pretrained(tmp_path)
    command = [sys.executable, "-c", LOAD, str(tmp_path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
