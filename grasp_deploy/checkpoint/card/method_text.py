"""Sentences for a model card: the method, the text, and how to make the checkpoint again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.data.source import TextSource
from grasp_deploy.stats.wording import counted, listed

UNITS = {"ffn": "FFN channels", "kv": "KV-head groups"}
COMPENSATION = (
    " Compensation: the kept columns of the output layers were solved by least squares for the "
    "dense model's hidden states."
)
FAMILY = (
    " It is one of a family of budgets ({} of the prunable cost), in which each keeps units of the "
    "one before."
)
NORM_SCALES = " Scales learnt for hidden channels are folded into the norms."
ADVICE = "Other text may lose more: measure yours with `grasp-deploy evaluate compare`."

Texts = Mapping[str, Any]


def how_units_were_chosen(plan: Plan) -> str:
    """The method that chose the units, and whether kept columns were solved."""
    config = plan.provenance["config"]
    method, family = config["method"], config.get("family")
    units = UNITS.get(config["targets"], " and ".join(UNITS.values()))
    if method == "grasp":
        chosen = "learnt gates on the frozen model, from a cut in rounds"
    elif method == "progressive":
        rounds = counted(config["rounds"], "round")
        chosen = f"a cut in {rounds} by the optimal brain surgeon's loss"
    else:
        chosen = f"the scores of `{method}`, at once"
    provenance = plan.provenance
    solved = provenance.get("compensation") or (plan.fitted and not provenance.get("healing"))
    scaled = NORM_SCALES if plan.norm_scales is not None else ""
    within = FAMILY.format(listed(f"{keep:g}" for keep in family)) if family else ""
    more = f"{within}{COMPENSATION if solved else ''}{scaled}"
    return f"{units} were chosen by {chosen}, under one global budget.{more}"


def what_it_learnt_from(provenance: Texts) -> str:
    """Text of calibration and healing, and the held-out loss on it."""
    calibration, losses = provenance["calibration"], provenance["losses"]
    text = f"Calibrated on {_sequences(calibration)}"
    if losses["heldout_pruned"] is None:
        text += "; none was held out, so no loss was measured."
    else:
        text += (
            f". On {calibration['heldout_sequences']} of them, held out, the loss went from "
            f"{losses['heldout_dense']:.4f} to {losses['heldout_pruned']:.4f} nats per token."
        )
    healed = [
        f"Healed on {_sequences(healing['text'])}: {healing['steps']:,} steps of LoRA of rank "
        f"{healing['rank']}, merged into the linear layers. On some of them, held out to choose "
        f"the step, the loss went from {healing['loss_before']:.4f} to {healing['loss_after']:.4f} "
        f"nats per token, where the dense model's is {healing['loss_dense']:.4f}."
        for healing in provenance.get("healing", [])
    ]
    return " ".join([text, *healed, ADVICE])


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
