"""The model card of a pruned checkpoint, from its plan and from what was measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.card.method_text import (
    how_it_is_made_again,
    how_units_were_chosen,
    paragraph,
    what_it_learnt_from,
)
from grasp_deploy.checkpoint.card.quality_section import quality_section
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.plan import Plan


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
    release = provenance["versions"]["grasp_deploy"]
    base_line = f"base_model: {base}\n" if provenance["revision"] else ""
    return f"""---
{base_line}library_name: transformers
pipeline_tag: text-generation
tags: [pruned, grasp-deploy, vllm]
---

# {base}, pruned to {share["parameters"]:.1%} of its parameters

{
        paragraph(
            f"A smaller dense model, cut from `{base}` by grasp-deploy {release}.",
            how_units_were_chosen(plan),
            "Each layer has its own sizes; weights keep their stock names.",
            "The licence is the base model's.",
        )
    }

| | dense | pruned | kept |
|---|---|---|---|
{_figures_table(plan, dense, pruned)}

## Quality

{quality_section(quality)}

{what_it_learnt_from(provenance)}

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

{
        paragraph(
            "`plan.safetensors` holds every decision (scores, mask, scales, provenance), and",
            "`compress_config.json` the options.",
            how_it_is_made_again(plan),
        )
    }

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
