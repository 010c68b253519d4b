"""The head of a model card: what the hub reads of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from grasp_deploy.checkpoint.plan import Plan, sources_of, texts_learnt_from
from grasp_deploy.data.corpora import find_corpus
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import read_text

FROM_BASE = ("license", "license_name", "license_link", "language", "tags")
OWN_TAGS = ("pruned", "grasp-deploy", "vllm")
HEAD = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def card_metadata(directory: Path) -> dict[str, Any]:
    """Licence, language and tags in a folder's README.md; empty where it states none.

    Every scalar is read as text: Norwegian (no) is no denial. Anything but texts is left out.
    """
    try:
        head = HEAD.match(read_text(directory / "README.md"))
        stated = yaml.load(head[1], Loader=yaml.BaseLoader) if head else None  # builds texts alone
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    if not isinstance(stated, dict):
        return {}
    return {key: stated[key] for key in FROM_BASE if _is_text(stated.get(key))}


def metadata_block(plan: Plan, from_base: Mapping[str, Any]) -> str:
    """The YAML between the dashes: the base model's own statements, and what the plan knows."""
    provenance = plan.provenance
    tags = from_base.get("tags", [])
    tags = [tags] if isinstance(tags, str) else tags
    stated = {
        "base_model": provenance["config"].get("base_model_id")
        or (provenance["model"] if provenance["revision"] else None),
        **{key: from_base[key] for key in FROM_BASE if key in from_base and key != "tags"},
        "datasets": _datasets(provenance),
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": list(dict.fromkeys([*OWN_TAGS, *tags])),
    }
    given = {key: value for key, value in stated.items() if value}
    return yaml.safe_dump(given, sort_keys=False, allow_unicode=True)


def _datasets(provenance: Mapping[str, Any]) -> list[str]:
    """Hub names of the texts that the model was calibrated or healed on."""
    names = map(_hub_name, sources_of(texts_learnt_from(provenance)))
    return list(dict.fromkeys(name for name in names if name))


def _hub_name(source: str) -> str | None:
    try:
        corpus = find_corpus(source)
    except InputError:
        return None
    on_hub = corpus is not None and corpus.path != "text" and HUB_NAME.fullmatch(corpus.path)
    return corpus.path if corpus and on_hub else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )
