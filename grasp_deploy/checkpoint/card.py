"""The model card of a pruned checkpoint, from its plan and from what was measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.quality_section import quality_section
from grasp_deploy.checkpoint.shapes import ModelShape


def ratios(plan: Plan, dense: ModelShape, pruned: ModelShape) -> dict[str, float]:
    """The four shares that are kept: prunable cost, all parameters, weight bytes, KV bytes."""
    budget = plan.provenance["budget"]
    return {
        "prunable_cost": budget["kept_cost"] / budget["total_cost"],
        "parameters": pruned.parameters / dense.parameters,
        "weight_bytes": pruned.weight_bytes / dense.weight_bytes,
        "kv_bytes_per_token": pruned.kv_bytes_per_token() / dense.kv_bytes_per_token(),
    }


def model_card(
    plan: Plan,
    dense: ModelShape,
    pruned: ModelShape,
    quality: Mapping[str, Any] | None = None,
) -> str:
    """README.md of the checkpoint: what it is, what was won and lost, how to load it.

    `quality` is the record that `evaluate card` makes; None: nothing was measured yet.
    """
    provenance = plan.provenance
    base = model_name(provenance)
    share = ratios(plan, dense, pruned)
    base_line = f"base_model: {base}\n" if provenance["revision"] else ""
    return f"""---
{base_line}library_name: transformers
pipeline_tag: text-generation
tags: [pruned, grasp-deploy, vllm]
---

# {base}, pruned to {share["parameters"]:.1%} of its parameters

A smaller dense model, cut from `{base}` by grasp-deploy {provenance["versions"]["grasp_deploy"]}:
one gate score per FFN channel and KV-head group, learnt on the frozen model under one global
budget. Each layer has its own sizes; weights keep their stock names. The licence is the base
model's.

| | dense | pruned | kept |
|---|---|---|---|
{_figures_table(plan, dense, pruned)}

## Quality

{quality_section(quality)}

{_loss_lines(provenance)}

## Loading it

```
vllm serve DIR                        # with grasp-deploy installed
vllm serve DIR --trust-remote-code    # without it
```

```python
import grasp_deploy  # without the package: trust_remote_code=True in both calls
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("DIR")
tokenizer = AutoTokenizer.from_pretrained("DIR")
```

`plan.safetensors` holds every decision (scores, mask, scales, provenance), and
`compress_config.json` the options. From the plan and the base model these weights can be made
again, byte for byte, and checked:

```
grasp-deploy export DIR/plan.safetensors --model {base} --output AGAIN
grasp-deploy verify DIR --model {base}
```
"""


def _figures_table(plan: Plan, dense: ModelShape, pruned: ModelShape) -> str:
    """Markdown rows: dense, pruned, and the share that is kept."""
    share, budget = ratios(plan, dense, pruned), plan.provenance["budget"]
    rows = [
        ("parameters", f"{dense.parameters:,}", f"{pruned.parameters:,}", share["parameters"]),
        (
            "weights, MiB",
            f"{dense.weight_bytes / 2**20:,.1f}",
            f"{pruned.weight_bytes / 2**20:,.1f}",
            share["weight_bytes"],
        ),
        (
            "KV cache, bytes per token",
            f"{dense.kv_bytes_per_token():,}",
            f"{pruned.kv_bytes_per_token():,}",
            share["kv_bytes_per_token"],
        ),
        (
            f"prunable cost ({plan.provenance['cost_model']})",
            f"{budget['total_cost']:,.0f}",
            f"{budget['kept_cost']:,.0f}",
            share["prunable_cost"],
        ),
    ]
    return "\n".join(f"| {what} | {a} | {b} | {kept:.1%} |" for what, a, b, kept in rows)


def model_name(provenance: dict[str, Any]) -> str:
    """Hub id of the base model, or the name of its folder; paths are nobody else's business."""
    name = provenance["model"]
    return name if provenance["revision"] else Path(name).resolve().name


def _corpora(calibration: dict[str, Any]) -> str:
    """The corpus, or each of several with its number of blocks; files without their folders."""
    parts = [(_corpus(p["source"]), p["sequences"]) for p in calibration.get("parts", [])]
    if not parts:
        return _corpus(calibration["source"])
    *others, last = [f"{corpus} ({blocks:,} blocks)" for corpus, blocks in parts]
    return f"{', '.join(others)} and {last}"


def _corpus(source: str) -> str:
    return f"`{source if source.startswith('hf:') else Path(source).name}`"


def _loss_lines(provenance: dict[str, Any]) -> str:
    """What the calibration saw of the loss, with a warning of what that does not tell."""
    calibration, losses = provenance["calibration"], provenance["losses"]
    text = (
        f"Calibrated on {calibration['sequences']} blocks of {calibration['sequence_length']}\n"
        f"tokens of {_corpora(calibration)}"
    )
    if losses["heldout_pruned"] is None:
        return text + "; no block was held out, so no loss was measured."
    return f"""{text}. On {calibration["heldout_sequences"]} of them, held out to choose the mask,
the loss went from {losses["heldout_dense"]:.4f} to {losses["heldout_pruned"]:.4f} nats per token.
Other text may lose more: measure yours with `grasp-deploy evaluate perplexity`."""
