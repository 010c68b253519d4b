"""Matrices whose rounding AutoRound learns, and those that it leaves to the nearest."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.checkpoint.write.quantize import quantize
from tests.checkpoint.test_equivalence import random_plan
from tests.checkpoint.write.test_quantize import first_of
from tests.cli.command import succeeded
from tests.tiny import save_tiny

pytest.importorskip("auto_round", reason="AutoRound is not installed")


@pytest.mark.slow
def test_matrices_that_cannot_be_learnt_are_counted(
    demo_text: tuple[Path, Path], tmp_path: Path
) -> None:
    base, plain, folder, other = (tmp_path / name for name in ("base", "plain", "w4a16", "other"))
    save_tiny("llama", base, dtype=torch.bfloat16, head_dim=16, max_position_embeddings=256)
    export(random_plan(base, ffn_multiple=32), base, plain)
    command = ("quantize", plain, "--scheme", "w4a16", "-o")
    text = ("--calibration", demo_text[0], "--calibration-sequences", "4")
    told = succeeded(*command, folder, *text)
    quantize(plain, "w4a16", other)
    learnt, nearest = (load_file(first_of(each)) for each in (folder, other))
    packed = [name for name in learnt if name.endswith("_packed")]
    left = [name for name in packed if torch.equal(learnt[name], nearest[name])]
    assert left and {name.split(".")[-2] for name in left} <= {"k_proj", "v_proj"}
    assert f"{len(left)} of the matrices; AutoRound" in " ".join(told.stdout.split())
    card = (folder / "README.md").read_text()
    assert f"by AutoRound, {len(left)} of the matrices excepted" in card
