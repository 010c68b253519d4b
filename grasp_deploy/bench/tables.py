"""Rich tables of the benches that count bytes: prefill memory and KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

MIB = 2**20
PARTS = ("weight_bytes", "kv_bytes", "other_bytes", "peak_bytes")


def memory_table(record: Mapping[str, Any]) -> Table:
    """Weights, KV cache, the rest and the peak of each prefill: predicted, measured, change.

    The change is that of the measured figure against the first model's at the same length.
    """
    batches = sorted({cell["batch"] for cell in record["cells"]})
    prompts = ", ".join(f"{batch} prompts" if batch > 1 else "1 prompt" for batch in batches)
    table = Table(
        title=f"Memory of a prefill of {prompts}, MiB",
        title_justify="left",
        caption="other = peak - weights - KV cache; change: of the measured figures",
        caption_justify="left",
    )
    table.add_column("tokens", justify="right")
    table.add_column("model", overflow="fold")
    table.add_column("", no_wrap=True)
    for head in ("weights", "KV cache", "other", "peak"):
        table.add_column(head, justify="right", no_wrap=True)
    first = {_point(cell): cell for cell in _of_first_model(record)}
    for point in dict.fromkeys(_point(cell) for cell in record["cells"]):
        for cell in (cell for cell in record["cells"] if _point(cell) == point):
            _add_memory_rows(table, cell, first.get(point))
        table.add_section()
    return table


def _add_memory_rows(
    table: Table, cell: Mapping[str, Any], first: Mapping[str, Any] | None
) -> None:
    """A cell: its prediction, its measurement, and the change against the first model."""
    predicted, measured = cell["predicted"], cell["measured"]
    table.add_row(f"{cell['prompt_tokens']:,}", Text(cell["model"]), "predicted", *_mib(predicted))
    table.add_row("", "", "measured", *_mib(measured))
    if first is not None and first["model"] != cell["model"]:
        changes = (_change(measured[part], first["measured"][part]) for part in PARTS)
        table.add_row("", "", "change", *changes)


def kv_table(record: Mapping[str, Any]) -> Table:
    """Tokens and full sequences that fit beside the weights: predicted, measured, change."""
    contexts = sorted({cell["context_tokens"] for cell in record["cells"]})
    memory = record["settings"].get("memory_bytes")
    within = f" in {memory / MIB:,.0f} MiB" if memory else ""
    sizes = ", ".join(f"{tokens:,}" for tokens in contexts)
    asked = any(cell["measured"] for cell in record["cells"])
    table = Table(
        title=f"KV cache beside the weights{within}; sequences of {sizes} tokens",
        title_justify="left",
        caption=None if asked else "predicted only: no vLLM was asked",
        caption_justify="left",
    )
    table.add_column("model", overflow="fold")
    table.add_column("KV bytes\nper token", justify="right", no_wrap=True)
    table.add_column("in one layer", justify="right", overflow="fold")
    table.add_column("cache,\nMiB", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for head in ("tokens", "sequences"):
        table.add_column(head, justify="right", no_wrap=True)
    first = {cell["context_tokens"]: cell for cell in _of_first_model(record)}
    for cell in record["cells"]:
        _add_kv_rows(table, cell, first.get(cell["context_tokens"]))
        table.add_section()
    return table


def _add_kv_rows(table: Table, cell: Mapping[str, Any], first: Mapping[str, Any] | None) -> None:
    figures = (
        f"{cell['kv_bytes_per_token']:,}",
        _range(cell["layer_kv_bytes_per_token"]),
        f"{cell['memory_bytes'] / MIB:,.1f}",
    )
    table.add_row(Text(cell["model"]), *figures, "predicted", *_held(cell["predicted"]))
    if cell["measured"] is not None:
        table.add_row("", "", "", "", "vLLM", *_held(cell["measured"]))
    if first is None or first["model"] == cell["model"]:
        return
    per_token, cache = (
        _change(cell[key], first[key]) for key in ("kv_bytes_per_token", "memory_bytes")
    )
    now, before = (one["measured"] or one["predicted"] for one in (cell, first))
    held = (_change(now[key], before[key]) for key in ("cached_tokens", "sequences"))
    table.add_row("", per_token, "", cache, "change", *held)


def _of_first_model(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    first = record["models"][0]["name"]
    return [cell for cell in record["cells"] if cell["model"] == first]


def _point(cell: Mapping[str, Any]) -> tuple[int, int]:
    return cell["prompt_tokens"], cell["batch"]


def _mib(sizes: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(f"{sizes[part] / MIB:,.1f}" for part in PARTS)


def _held(capacity: Mapping[str, int]) -> tuple[str, str]:
    return f"{capacity['cached_tokens']:,}", f"{capacity['sequences']:,}"


def _range(sizes: Sequence[int]) -> str:
    """The bytes of a layer, or of the narrowest and the widest."""
    least, most = min(sizes), max(sizes)
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"


def _change(now: float, before: float) -> str:
    return f"{now / before - 1:+.1%}" if before else ""
