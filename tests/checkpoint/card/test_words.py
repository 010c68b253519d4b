"""The head of a model card: licence, language and base model, wherever the base lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from grasp_deploy.checkpoint.card.model_card import card_metadata, metadata_block
from grasp_deploy.checkpoint.plan import Plan

HEAD = "---\nlicense: llama2\nlanguage: [en, no]\ntags: chat\nmodel-index: [1]\n---\n# Model\n"


def block(from_base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    config = {"base_model_id": changes.pop("base_model_id", None)}
    calibration = {"source": "mixture", "parts": changes.pop("parts", [])}
    provenance = {"model": "/a/folder", "revision": None, "config": config, **changes}
    ones = torch.ones(1)
    plan = Plan(ones, ones.bool(), ones, {"calibration": calibration, **provenance})
    head: dict[str, Any] = yaml.safe_load(metadata_block(plan, from_base))
    return head


def test_what_the_base_model_states_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(HEAD)
    stated = card_metadata(tmp_path)
    assert stated == {"license": "llama2", "language": ["en", "no"], "tags": "chat"}
    head = block(stated)
    assert (head["license"], head["language"]) == ("llama2", ["en", "no"])
    assert head["tags"] == ["pruned", "grasp-deploy", "vllm", "chat"]
    assert "base_model" not in head, "a folder's path stays private"
    written = f"---\n{yaml.safe_dump(head)}---\n"
    (tmp_path / "README.md").write_text(written)
    assert block(card_metadata(tmp_path)) == head, "a card that is renewed keeps it"


@pytest.mark.parametrize(
    "text", ["", "# Model\n", "---\n: [\n---\n", "---\n- a\n---\n", "---\nlicense: {a: 1}\n---\n"]
)
def test_a_card_that_states_nothing(text: str, tmp_path: Path) -> None:
    assert card_metadata(tmp_path) == {}
    (tmp_path / "README.md").write_text(text)
    assert card_metadata(tmp_path) == {}


def test_the_base_models_name_on_the_hub() -> None:
    assert block({}, base_model_id="org/name")["base_model"] == "org/name"
    assert block({}, model="org/other", revision="abc")["base_model"] == "org/other"
