"""Whether a plan's record holds all that others read of it, each leaf of its type.

Whoever reads a plan may rely on that: a damaged one is refused once, where it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from grasp_deploy.files.record import is_number

Record = Mapping[str, Any]

PROVENANCE = {  # what the record of a plan always holds
    *("model", "revision", "weight_hashes", "dense_layers", "cost_model", "budget", "config"),
    *("calibration", "losses", "versions", "seconds"),
}
TABLES = ("weight_hashes", "budget", "config", "calibration", "losses", "versions", "seconds")
BEHIND_GATES = ("self_attn.o_proj", "mlp.down_proj")  # what compensation fits
LINEARS = (
    *BEHIND_GATES,
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    *("mlp.gate_proj", "mlp.up_proj"),
)
FITTED = re.compile(
    rf"model\.layers\.(0|[1-9]\d{{0,8}})\.({'|'.join(map(re.escape, LINEARS))})\.weight"
)


def has_provenance(record: Record) -> bool:
    """Whether all that others read of a plan's record is there, in its form.

    Plans of older releases have no `fitted` and no `healing`.
    """
    return (
        record.keys() >= PROVENANCE
        and all(isinstance(record[name], dict) for name in TABLES)
        and _all_text(record["model"], record["cost_model"], record["config"].get("model"))
        and (record["revision"] is None or isinstance(record["revision"], str))
        and _all_text(*record["weight_hashes"].values())
        and _all_text(record["versions"].get("grasp_deploy"))
        and _are_layers(record["dense_layers"])
        and _is_budget(record["budget"])
        and _is_calibration(record["calibration"])
        and _are_losses(record["losses"])
        and {"gates", "scales"} <= record["seconds"].keys()
        and all(map(is_number, record["seconds"].values()))
        and _are_healings(record.get("healing", []))
        and _are_fitted(record)
    )


def _all_text(*values: object) -> bool:
    return all(isinstance(value, str) for value in values)


def _are_counts(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < 2**63 for value in values)


def _are_layers(layers: object) -> bool:
    """A list of `[FFN channels, KV groups]`."""
    return isinstance(layers, list) and all(
        isinstance(pair, list) and len(pair) == 2 and _are_counts(*pair) for pair in layers
    )


def _is_budget(budget: Record) -> bool:
    costs = [budget.get(name) for name in ("limit", "kept_cost", "total_cost")]
    return all(map(is_number, costs)) and all(cost > 0 for cost in costs if cost is not None)


def _is_calibration(calibration: Record) -> bool:
    return _is_text(calibration) and _are_counts(calibration.get("heldout_sequences"))


def _are_healings(healings: object) -> bool:
    """One after the other: their text, how long they learnt, and what they won."""
    return isinstance(healings, list) and all(
        isinstance(healing, dict)
        and isinstance(healing.get("text"), dict)
        and _is_text(healing["text"])
        and _are_counts(healing.get("steps"), healing.get("rank"))
        and all(is_number(healing.get(f"loss_{when}")) for when in ("dense", "before", "after"))
        for healing in healings
    )


def _is_text(text: Record) -> bool:
    """Its source, its blocks, and the parts of a mixture."""
    parts = text.get("parts", [])
    return (
        _all_text(text.get("source"))
        and _are_counts(text.get("sequences"), text.get("sequence_length"))
        and isinstance(parts, list)
        and all(isinstance(part, dict) for part in parts)
        and _all_text(*(part.get("source") for part in parts))
        and _are_counts(*(part.get("sequences") for part in parts))
    )


def _are_losses(losses: Record) -> bool:
    """Both numbers, or both null where nothing was held out."""
    names = ("heldout_dense", "heldout_pruned")
    found = [losses[name] for name in names if name in losses]
    return len(found) == 2 and (found == [None, None] or all(map(is_number, found)))


def _are_fitted(record: Record) -> bool:
    """Linear layers of the model; of one that was not healed, all behind gates or none."""
    names, layers = record.get("fitted", []), len(record["dense_layers"])
    if not isinstance(names, list) or not _all_text(*names) or len(set(names)) < len(names):
        return False
    found = [FITTED.fullmatch(name) for name in names]
    if not all(match is not None and int(match[1]) < layers for match in found):
        return False
    return bool(record.get("healing")) or not names or set(names) == _behind_gates(layers)


def _behind_gates(layers: int) -> set[str]:
    return {f"model.layers.{i}.{linear}.weight" for i in range(layers) for linear in BEHIND_GATES}
