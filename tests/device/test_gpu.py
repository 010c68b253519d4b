"""What a CPU cannot show: every stage on an NVIDIA GPU, against the same run on the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.verify import WRONG, verify
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.run_options import Start
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import Blocks, TextSource
from grasp_deploy.evaluate.perplexity import perplexity
from tests.checkpoint.test_equivalence import random_plan
from tests.kills import written_by
from tests.tiny import save_tiny

RUNS: dict[str, dict[str, Any]] = {
    "llama": {"rounds": 2},
    "mistral": {"method": "benchmarks.baselines.one_shot:flap", "dtype": "bfloat16"},
    "qwen2": {"method": "benchmarks.baselines.one_shot:taylor_element", "dtype": "float16"},
    "qwen3": {"method": "benchmarks.baselines.grasprune:paper", "gradient_checkpointing": True},
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("family", RUNS)
def test_a_gpu_comes_to_what_the_cpu_comes_to(family: str, tmp_path: Path) -> None:
    """Compress, verify, measure and heal: other rounding may move a unit at the cut, no more."""
    dense, text = tmp_path / "dense", tmp_path / "text.txt"
    model = save_tiny(family, dense, num_hidden_layers=2)
    text.write_text(written_by(model, sequences=16, length=32))
    config = CompressConfig(
        model=str(dense),
        keep=0.6,
        calibration=(str(text),),
        sequences=6,
        sequence_length=32,
        batch_size=2,
        **RUNS[family],
    )
    cpu, cuda = (tmp_path / device for device in ("cpu", "cuda"))
    masks = [compress(replace(config, device=f.name), f).plan.mask for f in (cpu, cuda)]
    assert float((masks[0] == masks[1]).float().mean()) > 0.9
    assert [row for row in verify(cuda, device=torch.device("cuda")) if row.outcome == WRONG] == []

    pruned, ids = tmp_path / "pruned", torch.arange(4 * 32).view(4, 32)
    export(random_plan(dense), dense, pruned)
    blocks = Blocks(ids, TextSource("made up"))
    models = (load(pruned, device=device, dtype="float32") for device in ("cpu", "cuda"))
    losses = [perplexity(one, blocks, 2).loss_nats_per_token for one in models]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)

    recovers = replace(config, keep=1.0, recover=4 * 1024, calibration=(str(text), "self=0"))
    healed = [
        compress(replace(recovers, device=name), tmp_path / f"healed-{name}", Start(checkpoint=cpu))
        for name in ("cpu", "cuda")
    ]
    after = [made.plan.provenance["healing"][0]["loss_after"] for made in healed]
    assert after[1] == pytest.approx(after[0], rel=1e-3)
