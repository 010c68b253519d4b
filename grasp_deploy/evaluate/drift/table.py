"""The tables of a drift record: texts, answers that flip, and lengths of answers."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from grasp_deploy.evaluate.drift.record import DriftRecord
from grasp_deploy.evaluate.tasks.table import percent
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import counted, plus_minus


def text_table(record: DriftRecord) -> Table:
    """A row a text; the mean excess over texts and the worst of them below."""
    dense, pruned = (model.name for model in record.models)
    notes = ["KL: of the dense model's next token to the pruned one's, nats a token"]
    notes.append("agree: share of tokens with the same most likely one; ±: one standard error")
    if any(text.calibrated_on for text in record.texts):
        notes.append("†: calibrated on, which counts only where all texts are")
    heads = ("text", "tokens", "KL", "agree, %", "nats lost")
    table = figure_table(f"Drift from {dense} to {pruned}", heads, notes)
    for text in record.texts:
        table.add_row(
            Text(text.name + "†" * text.calibrated_on),
            f"{text.tokens:,}",
            plus_minus(text.divergence, text.divergence_error, ".3f"),
            percent(text.agreement, text.agreement_error),
            plus_minus(text.excess_loss, text.excess_error, ".3f", "+"),
        )
    table.add_section()
    excess = record.excess
    mean = plus_minus(excess.mean, excess.mean_error, ".3f", "+")
    table.add_row(f"mean of {counted(excess.texts, 'text')}", "", "", "", mean)
    table.add_row(Text(f"worst: {excess.worst_text}"), "", "", "", f"{excess.worst:+.3f}")
    return table


def flip_table(record: DriftRecord) -> Table:
    """A row a task; none where no items were asked."""
    heads = ("task", "items", "flip", "right to wrong", "wrong to right")
    table = figure_table("Answers that flip, %", heads, ["±: one standard error"])
    for row in record.tasks:
        ways = (percent(row.right_to_wrong, None), percent(row.wrong_to_right, None))
        flip = percent(row.flips, row.flips_error)
        table.add_row(Text(f"{row.task} ({row.metric})"), f"{row.items:,}", flip, *ways)
    return table


def answer_table(record: DriftRecord) -> Table:
    """Mean length and the share that never ended; no row where nothing was prompted."""
    notes = ["an answer that never ended counts with all its tokens; ±: one standard error"]
    table = figure_table("Greedy answers", ("", "dense", "pruned", "change"), notes)
    if answers := record.answers:
        table.title = f"Greedy answers to {counted(answers.prompts, 'prompt')}"
        before, after = answers.dense_length, answers.pruned_length
        change = plus_minus(after - before, answers.change_error, ".1f", "+")
        table.add_row("mean length, tokens", f"{before:.1f}", f"{after:.1f}", change)
        shares = (answers.dense_unended, answers.pruned_unended)
        change = percent(shares[1] - shares[0], None, "+")
        within = f"not ended in {answers.most_tokens:,} tokens, %"
        table.add_row(within, *(percent(share, None) for share in shares), change)
    return table
