"""Another release of vLLM than the installed one, or none, as far as the package can tell."""

from collections.abc import Callable

import pytest


def pretend(monkeypatch: pytest.MonkeyPatch, version: Callable[[str], str]) -> None:
    """Let `version` tell the release of each package, as importlib.metadata does."""
    for module in ("checkpoint.limits", "engine.vllm_process"):
        monkeypatch.setattr(f"grasp_deploy.{module}.version", version)
