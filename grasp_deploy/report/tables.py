"""Rich tables of results, drawn from plain records."""

from __future__ import annotations

from typing import Any

from rich.table import Table

RATIO_NAMES = {
    "prunable_cost": "prunable cost",
    "parameters": "all parameters",
    "weight_bytes": "weight bytes",
    "kv_bytes_per_token": "KV bytes per token",
}


def layer_table(dense: dict[str, Any], pruned: dict[str, Any]) -> Table:
    """Query heads, KV heads and FFN channels per layer and in all, from two footprint records."""
    table = Table("layer", title="What each layer keeps", title_justify="left")
    for head in ("query heads", "KV heads", "FFN channels"):
        table.add_column(head, justify="right")
    names = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    for index, (before, after) in enumerate(zip(dense["layers"], pruned["layers"], strict=True)):
        table.add_row(str(index), *(f"{after[name]} of {before[name]}" for name in names))
    table.add_section()
    table.add_row("all", *(_share_of_sum(dense, pruned, name) for name in names))
    return table


def _share_of_sum(dense: dict[str, Any], pruned: dict[str, Any], name: str) -> str:
    before, after = (sum(layer[name] for layer in model["layers"]) for model in (dense, pruned))
    return f"{after:,} of {before:,} ({after / before:.1%})"


def ratio_table(ratios: dict[str, float], budget: dict[str, Any] | None = None) -> Table:
    """The shares that were kept, and what was spent of the budget."""
    table = Table("kept share of", title="What is left", title_justify="left")
    table.add_column("", justify="right")
    for name, label in RATIO_NAMES.items():
        if name in ratios:
            table.add_row(label, f"{ratios[name]:.2%}")
    if budget is not None:
        table.add_section()
        used = f"{budget['kept_cost']:,.0f} of {budget['limit']:,.0f}"
        table.add_row(f"budget used ({budget['cost_model']})", used)
    return table


def footprint_table(
    columns: dict[str, dict[str, Any]], title: str = "Predicted from config.json"
) -> Table:
    """Footprint records side by side, one column a model."""
    table = Table("", title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right")
    models = columns.values()
    table.add_row("parameters", *(f"{m['parameters']:,}" for m in models))
    table.add_row("weights, MiB", *(f"{m['weight_bytes'] / 2**20:,.2f}" for m in models))
    table.add_row("KV cache, bytes per token", *(f"{m['kv_bytes_per_token']:,}" for m in models))
    if all("cached_tokens_that_fit" in m for m in models):
        table.add_row(
            "tokens that fit beside the weights",
            *(f"{m['cached_tokens_that_fit']:,}" for m in models),
        )
    table.add_row("distinct layer shapes", *(str(m["distinct_shapes"]) for m in models))
    sizes = (", ".join(map(str, m["tensor_parallel_sizes"])) for m in models)
    table.add_row("tensor-parallel sizes that fit", *sizes)
    return table


def check_table(checks: list[dict[str, Any]]) -> Table:
    """The links of a verification."""
    table = Table("check", "", "detail", title="Verification", title_justify="left")
    marks = {True: "[green]ok[/]", False: "[red]differs[/]"}
    for check in checks:
        table.add_row(check["name"], marks[check["ok"]], check["detail"])
    return table


def comparison_table(dense: dict[str, Any], pruned: dict[str, Any]) -> Table:
    """Dense beside pruned: held-out perplexity and footprint, with the change."""
    table = Table(
        "", "dense", "pruned", "change", title="What was won and lost", title_justify="left"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    rows = [
        ("held-out perplexity", "perplexity", 1, ".2f"),
        ("parameters", "parameters", 1, ",.0f"),
        ("weights, MiB", "weight_bytes", 2**20, ".2f"),
        ("KV cache, bytes per token", "kv_bytes_per_token", 1, ",.0f"),
    ]
    for label, key, unit, form in rows:
        before, after = dense[key] / unit, pruned[key] / unit
        table.add_row(label, f"{before:{form}}", f"{after:{form}}", f"{after / before - 1:+.1%}")
    return table
