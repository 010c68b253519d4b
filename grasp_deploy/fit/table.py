"""The rich tables of `fit`: the offers, and predicted beside measured."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from grasp_deploy.engine.offline import Deployed
from grasp_deploy.files.sizes import BINARY_UNITS, format_bytes
from grasp_deploy.fit.memory import Fit, Served
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import counted

HEADS = ("weights", "KV\ncache", "vLLM's\nown", "left", "sequences\nthat fit")
TOLERANCE = 0.02  # of a measured size, beyond which a miss wants a reason


def offer_table(fit: Fit) -> Table:
    """Each way to deploy the model, part by part; dim where it does not fit."""
    unit = "GiB" if fit.room.usable_bytes >= BINARY_UNITS["GiB"] else "MiB"
    usable, memory = format_bytes(fit.room.usable_bytes), format_bytes(fit.room.memory_bytes)
    is_pruned = any(offer.keep is not None for offer in fit.offers)
    sequences = counted(fit.load.sequences, "sequence")
    title = f"{sequences} of {fit.load.context_tokens:,} tokens in {usable}, "
    path = Path(fit.config.model)
    name = (path.resolve().parent if path.name == "config.json" else path).name
    name = name.removesuffix(".json")
    notes = [
        "pruned: to a share of what pruning can take, the layers' matrices and the cache, as if "
        "all channels and KV groups shrank alike"
    ] * is_pruned
    tokens = f"the load's {fit.cached_tokens:,}, times FP8's bits over those of a weight"
    in_four = any(offer.bits == 4 and offer.keep is not None for offer in fit.offers)
    notes += [f"--cached-tokens before 4 bits: {tokens} with its scale"] * in_four
    heads = (f"{name}\nin {unit}", *HEADS)
    table = figure_table(f"{title}{fit.room.utilization:.0%} of {memory}", heads, notes)
    for offer in fit.offers:
        parts = offer.memory
        own_bytes = parts.activation_bytes + parts.overhead_bytes
        sizes = (parts.weight_bytes, parts.kv_bytes, own_bytes, offer.left_bytes)
        cells = (f"{size / BINARY_UNITS[unit]:,.2f}" for size in sizes)
        sequences = f"{offer.sequences:,}"
        table.add_row(Text(offer.name), *cells, sequences, style=None if offer.fits else "dim")
    return table


def served_table(served: Served) -> Table:
    """Predicted figures of the deployment beside those of a running vLLM."""
    table = figure_table("Predicted and measured", ("", "predicted", "vLLM", "off by"))
    if served.measured is None:
        table.caption = "predicted only: no vLLM is installed here"
    after = _figures(served.measured) if served.measured else {}
    for name, predicted in _figures(served.predicted).items():
        measured, off = after.get(name), after.get(name, predicted) / max(predicted, 1) - 1
        if abs(off) > TOLERANCE:
            table.caption = "vLLM 0.32 was tried; another release may share its memory otherwise"
        cells = ("", "") if measured is None else (f"{measured:,}", f"{off:+.2%}")
        table.add_row(name, f"{predicted:,}", *cells)
    return table


def _figures(deployed: Deployed) -> dict[str, int]:
    return {
        "weights, bytes": deployed.weight_bytes,
        "KV cache, bytes": deployed.kv_bytes,
        "together, bytes": deployed.weight_bytes + deployed.kv_bytes,
        "tokens that the cache holds": deployed.capacity.cached_tokens,
        "sequences of this context": deployed.capacity.sequences,
    }
