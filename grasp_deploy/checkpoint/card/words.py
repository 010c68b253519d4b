"""The head of a model card, which the hub reads, and its sentences on method and text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.data.source import TextSource
from grasp_deploy.files.disk import read_text
from grasp_deploy.stats.wording import listed

FROM_BASE = ("license", "license_name", "license_link", "language", "tags")
OWN_TAGS = ("pruned", "grasp-deploy", "vllm")
HEAD = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)
METHODS = {
    "grasp": "learnt gates on the frozen model, from a cut in rounds",
    "progressive": "a cut in rounds by the optimal brain surgeon's loss",
}
UNITS = {"ffn": "FFN channels", "kv": "KV-head groups"}
COMPENSATION = (
    " Compensation: the kept columns of the output layers were solved by least squares for the "
    "dense model's hidden states."
)
ADVICE = "Other text may lose more: measure yours with `grasp-deploy evaluate compare`."

Texts = Mapping[str, Any]


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
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": list(dict.fromkeys([*OWN_TAGS, *tags])),
    }
    given = {key: value for key, value in stated.items() if value}
    return yaml.safe_dump(given, sort_keys=False, allow_unicode=True)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )


def how_units_were_chosen(plan: Plan) -> str:
    """The method that chose the units, and whether kept columns were solved."""
    provenance = plan.provenance
    config, healed = provenance["config"], provenance.get("healing")
    units = UNITS.get(config["targets"], " and ".join(UNITS.values()))
    chosen = METHODS.get(config["method"], f"the scores of `{config['method']}`, at once")
    solved = provenance.get("compensation") or (plan.fitted and not healed)
    more = COMPENSATION if solved else ""
    return f"{units} were chosen by {chosen}, under one global budget.{more}"


def what_it_learnt_from(provenance: Texts) -> str:
    """Text of calibration and healing, and the held-out loss on it."""
    text = f"Calibrated on {_sequences(provenance['calibration'])}."
    losses = provenance["losses"]
    if losses["heldout_pruned"] is not None:
        text += (
            f" On some of them, held out, the loss went from {losses['heldout_dense']:.4f} to "
            f"{losses['heldout_pruned']:.4f} nats per token."
        )
    healed = [
        f"Healed on {_sequences(healing['text'])}, by LoRA of rank {healing['rank']}: the loss on "
        f"some of them went from {healing['loss_before']:.4f} to {healing['loss_after']:.4f}."
        for healing in provenance.get("healing", [])
    ]
    return " ".join([text, *healed, ADVICE])


def _sequences(text: Texts) -> str:
    """Number, length and corpora of a text; files without their folders."""
    parts = text.get("parts") or [text]
    corpora = [f"{_corpus(part['source'])} ({part['sequences']:,})" for part in parts]
    sources = listed(corpora if len(parts) > 1 else [_corpus(parts[0]["source"])])
    return f"{text['sequences']:,} sequences of {text['sequence_length']:,} tokens of {sources}"


def _corpus(source: str) -> str:
    text = TextSource(source)
    if text.prompts:
        return f"the model's own text, which answers {_corpus(text.prompts.what)}"
    if text.is_own:
        return "the model's own text"
    return f"`{source if source.startswith('hf:') else Path(source).name}`"
