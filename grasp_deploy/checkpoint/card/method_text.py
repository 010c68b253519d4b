"""Sentences for a model card: the method, the text, and how to make the checkpoint again."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.config.compress_config import LEARNT_METHODS
from grasp_deploy.stats.wording import counted

UNITS = {"ffn": "FFN channels", "kv": "KV-head groups"}
STARTS = {"equal": "equal scores", "progressive": "a cut in rounds"}
SHARES = {"layerwise": "with equal shares for all layers", "owl": "with shares by layers' outliers"}
ONE_BUDGET = "under one global budget"
ADVICE = "Other text may lose more: measure yours with `grasp-deploy evaluate perplexity`."
WIDTH = 96

Texts = Mapping[str, Any]


def paragraph(*sentences: str) -> str:
    """Sentences as lines of a card; empty ones are left out."""
    text = " ".join(sentence for sentence in sentences if sentence)
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def how_units_were_chosen(plan: Plan) -> str:
    """The method that chose the units, and whether kept columns were solved."""
    config = plan.provenance["config"]
    method = config["method"]
    units = UNITS.get(config["targets"], " and ".join(UNITS.values()))
    if method in LEARNT_METHODS:
        start = STARTS.get(config["start"], f"the ranking of `{config['start']}`")
        chosen = f"learnt gates on the frozen model (`{method}`, from {start})"
        if plan.provenance.get("swaps"):
            chosen += " and swaps of KV groups at their cut"
    elif method == "progressive":
        rounds = counted(config["rounds"], "round")
        chosen = f"a cut in {rounds} by `{config['round_criterion']}` scores"
    else:
        chosen = f"the criterion `{method}`, at once"
    budget = SHARES.get(config["allocation"], ONE_BUDGET)
    return f"{units} were chosen by {chosen}, {budget}.{_compensation(plan)}"


def what_it_learnt_from(provenance: Texts) -> str:
    """Text of calibration and healing, and the held-out loss on it."""
    healed = [_how_it_was_healed(healing) for healing in provenance.get("healing", [])]
    measured = healed or provenance["losses"]["heldout_pruned"] is not None
    return paragraph(_how_it_was_calibrated(provenance), *healed, ADVICE if measured else "")


def _how_it_was_calibrated(provenance: Texts) -> str:
    calibration, losses = provenance["calibration"], provenance["losses"]
    text = f"Calibrated on {_blocks(calibration)}"
    if losses["heldout_pruned"] is None:
        return f"{text}; no block was held out, so no loss was measured."
    purpose = _purpose_of_heldout(provenance["config"])
    when = "Before healing, on" if provenance.get("healing") else "On"
    return (
        f"{text}. {when} {calibration['heldout_sequences']} of them, held out{purpose}, the loss "
        f"went from {losses['heldout_dense']:.4f} to {losses['heldout_pruned']:.4f} nats per token."
    )


def _how_it_was_healed(healing: Texts) -> str:
    return (
        f"Healed on {_blocks(healing['text'])}: {healing['steps']:,} steps of LoRA of rank "
        f"{healing['rank']}, merged into the linear layers. On blocks of them held out to choose "
        f"the step, the loss went from {healing['loss_before']:.4f} before to "
        f"{healing['loss_after']:.4f} after healing, where the dense model's is "
        f"{healing['loss_dense']:.4f} nats per token."
    )


def how_it_is_made_again(plan: Plan) -> str:
    """The sentence that leads to the command of an export of the plan."""
    again = "these weights can be made again, byte for byte"
    if not plan.fitted:
        return f"From the plan and the base model {again}, and checked:"
    kept = "healed linear layers are" if plan.provenance.get("healing") else "fitted columns are"
    return (
        f"From the plan in this folder and the base model {again}, and checked. The {kept} taken "
        "from this folder: no plan holds them."
    )


def _compensation(plan: Plan) -> str:
    provenance = plan.provenance
    fitted = provenance.get("compensation") or (plan.fitted and not provenance.get("healing"))
    if not fitted:
        return ""
    return (
        " Compensation: the kept columns of the output layers were solved by least squares for the "
        "dense model's hidden states."
    )


def _purpose_of_heldout(config: Texts) -> str:
    best, solved = config["select"] == "best", bool(config["compensation"])
    learnt = config["method"] in LEARNT_METHODS
    decided = {
        "choose the mask": learnt and (best or solved or bool(config["swap_groups"])),
        "judge the solved columns": solved and not learnt,
        "choose the scales": best and config["scale_epochs"] > 0,
    }
    purposes = [purpose for purpose, applies in decided.items() if applies]
    return f" to {' and to '.join(purposes)}" if purposes else ""


def _blocks(text: Texts) -> str:
    return f"{text['sequences']:,} blocks of {text['sequence_length']:,} tokens of {_corpora(text)}"


def _corpora(text: Texts) -> str:
    """The corpus, or each of several with its sequences counted; files without their folders."""
    parts = [(_corpus(p["source"]), p["sequences"]) for p in text.get("parts", [])]
    if not parts:
        return _corpus(text["source"])
    *others, last = [f"{corpus} ({blocks:,} blocks)" for corpus, blocks in parts]
    return f"{', '.join(others)} and {last}"


def _corpus(source: str) -> str:
    return f"`{source if source.startswith('hf:') else Path(source).name}`"
