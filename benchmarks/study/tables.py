"""Rich tables of a study: what each way of compressing loses, keeps and costs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.report.table_layout import fits

Record = Mapping[str, Any]
BY_COST = "ffn_share_of_kept_cost"
UNTOLD = "-"
BROKEN = 1e5  # a perplexity whose digits say no more than that the model is broken


def quality_tables(record: Record) -> list[Table]:
    """Perplexity by variant and budget, the mean over seeds with half their range.

    One table of all corpora, or one a corpus where that would be wider than a terminal.
    """
    corpora = list(record["dense_perplexity"])
    table = _quality_table(record, corpora)
    if len(corpora) == 1 or fits(table):
        return [table]
    return [_quality_table(record, [corpus]) for corpus in corpora]


def _quality_table(record: Record, corpora: Sequence[str]) -> Table:
    alone = f", {corpora[0]}" if len(corpora) == 1 else ""
    table = Table(
        title=Text(f"Perplexity by budget: study of {record['study']}{alone}"),
        title_justify="left",
        caption=_caption(record),
        caption_justify="left",
    )
    table.add_column("variant", overflow="fold")
    keeps = budgets(record)
    points = [(keep, corpus) for keep in keeps for corpus in corpora]
    for keep, corpus in points:
        head = f"{keep:g}" if alone else f"{keep:g} {corpus}"
        table.add_column(Text(head), justify="right", no_wrap=bool(alone))
    table.add_row(
        "dense", *(perplexity_text(record["dense_perplexity"][corpus]) for _, corpus in points)
    )
    table.add_section()
    for variant in variants(record):
        cells = (
            _with_spread([row["perplexity"][corpus] for row in runs(record, variant, keep)])
            for keep, corpus in points
        )
        table.add_row(Text(variant), *cells)
    return table


def kept_table(record: Record) -> Table:
    """What each variant keeps of each kind of unit, and its seconds in all; means over seeds.

    The shares by count are those that the paper's appendix diagnoses its variants by.
    """
    table = Table(
        title=Text(f"What is kept, and how long it takes: study of {record['study']}"),
        title_justify="left",
        caption="cost: of the dense model's under the budget's cost model; channels and groups by "
        "count",
        caption_justify="left",
    )
    table.add_column("variant", overflow="fold")
    for head in ("cost", "FFN channels", "KV groups", "seconds"):
        table.add_column(head, justify="right", no_wrap=True)
    for keep in budgets(record):
        table.add_row(Text(f"keep {keep:g}", style="bold"))
        for variant in variants(record):
            if some := runs(record, variant, keep):
                table.add_row(Text(variant), *_kept_cells(some))
        table.add_section()
    return table


def _kept_cells(rows: Sequence[Record]) -> list[str]:
    keys = ("kept_cost_share", "kept_ffn_share", "kept_kv_share")
    shares = [f"{statistics.fmean(row[key] for row in rows):.1%}" for key in keys]
    seconds = statistics.fmean(sum(row["seconds"].values()) for row in rows)
    return [*shares, f"{seconds:,.1f}" if seconds < 100 else f"{seconds:,.0f}"]


def budget_tables(record: Record) -> list[Table]:
    """What the kept budget is spent on, and the mean score of what it buys; means over seeds.

    The rest of what the paper's appendix diagnoses its variants by; none where no row has it.
    """
    told = [BY_COST in row for row in record["rows"]]
    if not any(told):
        return []
    table = Table(
        title=Text(f"What the kept budget goes to: study of {record['study']}"),
        title_justify="left",
        caption="shares of the kept cost; scores: the mean over the units that are kept, in the "
        "method's own unit, so that only those of one row compare"
        + ("" if all(told) else f"; {UNTOLD}: older rows, which do not tell it"),
        caption_justify="left",
    )
    table.add_column("variant", overflow="fold")
    for head in ("FFN", "KV", "FFN score", "KV score"):
        table.add_column(head, justify="right", no_wrap=True)
    for keep in budgets(record):
        table.add_row(Text(f"keep {keep:g}", style="bold"))
        for variant in variants(record):
            if some := runs(record, variant, keep):
                table.add_row(Text(variant), *_budget_cells(some))
        table.add_section()
    return [table]


def _budget_cells(rows: Sequence[Record]) -> list[str]:
    rows = [row for row in rows if BY_COST in row]
    if not rows:
        return [UNTOLD] * 4
    shares = [
        f"{statistics.fmean(row[key] for row in rows):.1%}"
        for key in (BY_COST, "kv_share_of_kept_cost")
    ]
    scores = [
        [row[key] for row in rows if row.get(key) is not None]
        for key in ("mean_kept_ffn_score", "mean_kept_kv_score")
    ]
    return [*shares, *(f"{statistics.fmean(some):.3g}" if some else "" for some in scores)]


def budgets(record: Record) -> list[float]:
    """The shares of the cost that are kept, the largest first."""
    return sorted({row["keep"] for row in record["rows"]}, reverse=True)


def variants(record: Record) -> list[str]:
    """The ways of compressing, in the order in which they were measured."""
    return list(dict.fromkeys(row["variant"] for row in record["rows"]))


def runs(record: Record, variant: str, keep: float) -> list[Record]:
    """The rows of one variant under one budget, one a seed."""
    return [row for row in record["rows"] if (row["variant"], row["keep"]) == (variant, keep)]


def of_study(record: Record) -> str:
    """The study and its model, as a title names them."""
    model = record["settings"].get("model")
    return f"study of {record['study']}" + (f", {PurePath(model).name}" if model else "")


def seeds_in_words(record: Record) -> str:
    """What a point of a figure stands for."""
    least, most = _seeds(record)
    some = f"{most} seeds" if least == most else f"{least} to {most} seeds"
    return f"mean and range of {some}" if most > 1 else "one seed"


def _caption(record: Record) -> str | None:
    """What a cell of the perplexities stands for; None where there is one seed."""
    least, most = _seeds(record)
    alone = "; without ±: one seed" if least == 1 else ""
    return f"means over {most} seeds ± half their range{alone}" if most > 1 else None


def _seeds(record: Record) -> tuple[int, int]:
    """The fewest and the most seeds of a variant under a budget."""
    counts = Counter((row["variant"], row["keep"]) for row in record["rows"])
    return min(counts.values()), max(counts.values())


def _with_spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return perplexity_text(mean)
    half = (max(values) - min(values)) / 2
    return (
        f"{perplexity_text(mean)} ±{half:,.{_decimals(mean)}f}"
        if mean < BROKEN
        else perplexity_text(mean)
    )


def perplexity_text(value: float) -> str:
    """Four digits, or what a broken model has in tenfolds."""
    return f"{value:,.{_decimals(value)}f}" if value < BROKEN else f"{value:.1e}"


def _decimals(value: float) -> int:
    """As many as leave four digits, or none."""
    return 2 if value < 100 else 1 if value < 1000 else 0
