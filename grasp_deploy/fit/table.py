"""The rich table of `fit`: its offers."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from grasp_deploy.files.sizes import BINARY_UNITS, format_bytes
from grasp_deploy.fit.memory import Fit
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import counted

HEADS = ("weights", "KV\ncache", "vLLM's\nown", "left", "sequences\nthat fit")


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
