"""vLLM's engine in a child: the last link of `verify`, and what it does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from grasp_deploy.checkpoint.verify import verify
from grasp_deploy.engine.offline import greedy_tokens
from grasp_deploy.errors import InputError
from tests.installed import pretend
from tests.tiny import save_tiny


@pytest.mark.vllm
def test_verify_compares_what_is_served(demo_checkpoint: Path) -> None:
    checks = list(verify(demo_checkpoint, served=greedy_tokens))
    assert [check.name for check in checks][-1] == "served"
    assert all(check.ok for check in checks), checks


def test_models_that_cannot_be_served_are_refused_before_vllm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    save_tiny("llama", tmp_path, head_dim=8)
    with pytest.raises(InputError, match="the model's heads are 8 wide"):
        greedy_tokens(tmp_path, [[1]], 8)
