"""Rich tables of a study: what each way of compressing loses on text and tasks, keeps, costs."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import UNSET
from rich.table import Table
from rich.text import Text

from benchmarks.study.record import Accuracy, Row, Study, Tasks
from grasp_deploy.evaluate.tasks.accuracy import AVERAGE_RULE, RULE
from grasp_deploy.report.tables import add_group
from grasp_deploy.stats.wording import listed, percent

UNKNOWN = "-"
AVERAGE = ""  # the name of the last column of accuracies; no task has it
TASKS_PER_TABLE = 3  # as many as fit a terminal
BROKEN = 1e5  # a perplexity from here on says no more than that the model is broken


def quality_tables(study: Study) -> list[Table]:
    """Perplexity by variant and budget, one table for each corpus, and the excess over several."""
    tables = [_quality_table(study, corpus) for corpus in study.dense_perplexity]
    return [*tables, _excess_table(study)] if len(tables) > 1 or _has_divergences(study) else tables


def _has_divergences(study: Study) -> bool:
    return bool(study.rows) and all(row.divergence for row in study.rows)


def _excess_table(study: Study) -> Table:
    """Mean and worst loss above the dense model's over all corpora, by variant and budget.

    The mean is the number to optimise: what is fitted to one kind of text flatters on that alone.
    Below both stands the divergence from the dense model, which no style of a text flatters.
    """
    table = variant_table(f"Excess by budget: study of {study.study}, mean and below it worst text")
    kinds = listed(list(study.dense_perplexity))
    known = _has_divergences(study)
    third = "; third line: mean divergence from it" if known else ""
    table.caption = f"nats per token above the dense model's over {kinds}; means over seeds{third}"
    for keep in study.budgets:
        table.add_column(f"{keep:g}", justify="right", no_wrap=True)

    def cell(rows: Sequence[Row]) -> str:
        if not rows:
            return UNKNOWN
        means = [statistics.fmean(row.excess_nats.values()) for row in rows]
        worst = [max(row.excess_nats.values()) for row in rows]
        lines = [f"{statistics.fmean(means):+.3f}", f"{statistics.fmean(worst):+.3f}"]
        if known:
            drifts = [statistics.fmean(row.divergence.values()) for row in rows]
            lines.append(f"{statistics.fmean(drifts):.3f}")
        return "\n".join(lines)

    for variant in study.variants:
        cells = (cell(study.runs(variant, keep)) for keep in study.budgets)
        table.add_row(Text(variant), *cells)
    return table


def _quality_table(study: Study, corpus: str) -> Table:
    table = variant_table(f"Perplexity by budget: study of {study.study}, {corpus}")
    table.caption = _seed_note(study)
    for keep in study.budgets:
        table.add_column(f"{keep:g}", justify="right", no_wrap=True)
    dense = perplexity_text(study.dense_perplexity[corpus])
    table.add_row("dense", *(dense for _ in study.budgets))
    table.add_section()
    for variant in study.variants:
        cells = (
            _with_spread([row.perplexity[corpus] for row in study.runs(variant, keep)])
            for keep in study.budgets
        )
        table.add_row(Text(variant), *cells)
    return table


def kept_table(study: Study) -> Table:
    """Kept units of each kind by variant, and its seconds in all; means over seeds."""
    table = variant_table(f"What is kept, and how long it takes: study of {study.study}")
    table.caption = (
        "cost: share of the dense model's under the budget's cost model; channels and groups: by "
        "count"
    )
    for head in ("cost", "FFN channels", "KV groups", "seconds"):
        table.add_column(head, justify="right", no_wrap=True)
    add_rows_by_budget(table, study, _kept_cells)
    return table


def _kept_cells(rows: Sequence[Row]) -> list[str]:
    seconds = statistics.fmean(sum(row.seconds.values()) for row in rows)
    return [
        f"{statistics.fmean(row.kept_cost_share for row in rows):.1%}",
        f"{statistics.fmean(row.kept_ffn_share for row in rows):.1%}",
        f"{statistics.fmean(row.kept_kv_share for row in rows):.1%}",
        f"{seconds:,.1f}" if seconds < 100 else f"{seconds:,.0f}",
    ]


def budget_tables(study: Study) -> list[Table]:
    """Shares of the spent budget and mean scores of kept units, over seeds; empty without any."""
    known = [row.ffn_share_of_kept_cost is not UNSET for row in study.rows]
    if not any(known):
        return []
    table = variant_table(f"What the kept budget goes to: study of {study.study}")
    table.caption = (
        "shares of the kept cost; scores: means over the kept units in the method's own unit, "
        "comparable within a row only" + ("" if all(known) else f"; {UNKNOWN}: not recorded")
    )
    for head in ("FFN", "KV", "FFN score", "KV score"):
        table.add_column(head, justify="right", no_wrap=True)
    add_rows_by_budget(table, study, _budget_cells)
    return [table]


def _budget_cells(rows: Sequence[Row]) -> list[str]:
    ffn = [r.ffn_share_of_kept_cost for r in rows if r.ffn_share_of_kept_cost is not UNSET]
    kv = [r.kv_share_of_kept_cost for r in rows if r.kv_share_of_kept_cost is not UNSET]
    if not (ffn and kv):
        return [UNKNOWN] * 4
    scores = ([r.mean_kept_ffn_score for r in rows], [r.mean_kept_kv_score for r in rows])
    finite = [[score for score in kind if isinstance(score, float)] for kind in scores]
    means = (f"{statistics.fmean(kind):.3g}" if kind else "" for kind in finite)
    return [f"{statistics.fmean(ffn):.1%}", f"{statistics.fmean(kv):.1%}", *means]


def variant_table(title: str) -> Table:
    """An empty table whose first column names variants."""
    table = Table(title=Text(title), title_justify="left", caption_justify="left")
    table.min_width = min(len(title), 60)
    table.add_column("variant", overflow="fold")
    return table


def add_rows_by_budget(
    table: Table, study: Study, cells: Callable[[Sequence[Row]], list[str]]
) -> None:
    """Add a heading for each budget, and below it a row for each variant measured under it."""
    for keep in study.budgets:
        measured = ((name, study.runs(name, keep)) for name in study.variants)
        shown = [[name, *texts] for name, rows in measured if rows and (texts := cells(rows))]
        add_group(table, f"keep {keep:g}", shown)


def study_title(study: Study) -> str:
    """The study and its model, as the title of a figure names them."""
    return f"study of {study.study}" + (f", {study.model}" if study.model else "")


def seeds_in_words(study: Study) -> str:
    """The samples that a point of a figure is the mean of, in words."""
    fewest, most = _seed_counts(study)
    count = f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"
    return f"mean and range of {count}" if most > 1 else "one seed"


def _seed_note(study: Study) -> str | None:
    fewest, most = _seed_counts(study)
    alone = "; without ±: one seed" if fewest == 1 else ""
    return f"means over {most} seeds ± half their range{alone}" if most > 1 else None


def _seed_counts(study: Study) -> tuple[int, int]:
    counts = Counter((row.variant, row.keep) for row in study.rows)
    return min(counts.values()), max(counts.values())


def _with_spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = statistics.fmean(values)
    if len(values) == 1 or mean >= BROKEN:
        return perplexity_text(mean)
    half_range = (max(values) - min(values)) / 2
    return f"{perplexity_text(mean)} ±{half_range:,.{_decimals(mean)}f}"


def perplexity_text(value: float) -> str:
    """Four digits, or an exponent if the model is broken."""
    return f"{value:,.{_decimals(value)}f}" if value < BROKEN else f"{value:.1e}"


def _decimals(value: float) -> int:
    return 2 if value < 100 else 1 if value < 1000 else 0


def accuracy_tables(study: Study) -> list[Table]:
    """Accuracies by variant and budget with standard errors, dense first; empty without tasks."""
    if study.dense_tasks is UNSET or study.dense_task_average is UNSET:
        return []
    dense = _columns(study.dense_tasks, study.dense_task_average)
    names = list(dense) if len(study.dense_tasks) > 1 else list(study.dense_tasks)
    tables = []
    for start in range(0, len(names), TASKS_PER_TABLE):
        group = names[start : start + TASKS_PER_TABLE]
        table = variant_table(f"Accuracy on tasks, %: study of {study.study}")
        for name in group:
            table.add_column(Text(name or "average"), justify="right", overflow="fold")
        table.add_row(
            "dense", *(percent(dense[n].accuracy, dense[n].standard_error) for n in group)
        )
        table.add_section()
        add_rows_by_budget(table, study, partial(_cells, group))
        tables.append(table)
    tables[-1].caption = "\n".join(_notes(study, study.dense_tasks))
    return tables


def _columns(tasks: Tasks, average: Accuracy) -> dict[str, Accuracy]:
    return {**tasks, AVERAGE: average}


def _cells(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    columns = [
        _columns(row.tasks, row.task_average)
        for row in rows
        if row.tasks is not UNSET and row.task_average is not UNSET
    ]
    return [_cell([column[name] for column in columns]) for name in names] if columns else []


def _cell(accuracies: Sequence[Accuracy]) -> str:
    """The mean over seeds; seeds answer the same items, so their mean has the error of one."""
    errors = [a.standard_error for a in accuracies if a.standard_error is not None]
    error = statistics.fmean(errors) if len(errors) == len(accuracies) else None
    return percent(statistics.fmean(a.accuracy for a in accuracies), error)


def _notes(study: Study, tasks: Tasks) -> list[str]:
    metrics: dict[str, list[str]] = {}
    for name, task in tasks.items():
        metrics.setdefault(task.metric, []).append(name)
    seeds = max(len(study.runs(row.variant, row.keep)) for row in study.rows)
    notes = [RULE, "; ".join(f"{metric}: {', '.join(names)}" for metric, names in metrics.items())]
    if len(tasks) > 1:
        notes.append(AVERAGE_RULE)
    notes.append(
        "±: one standard error, of the choice of items" + "; means over seeds" * (seeds > 1)
    )
    if limit := study.settings.get("task_limit"):
        notes.append(f"only the first {limit} items of each task")
    return notes
