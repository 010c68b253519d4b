"""Throughput and latency, as tables, sentences and figures: faster, slower, or neither.

Beside a measured gain stands the ideal one. Decoding reads every weight once a step, whatever the
batch, and the cached keys and values of all sequences. Its ideal gain is the ratio of these bytes.
Prefill reads the weights once for thousands of tokens, so its ideal gain is the ratio of the
floating-point operations. The embedding is a look-up and counts for neither. The output projection
counts for both, tied or not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.show import line_drawing, number, paired_change, with_spread
from grasp_deploy.bench.throughput import Cell, ThroughputRecord
from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.noise import (
    NO_DIFFERENCE,
    TOO_FEW,
    UNDECIDED,
    Difference,
    differences,
    of_repetitions,
)
from grasp_deploy.stats.wording import common_outcome, grouped, listed, points_by_outcome, span

if TYPE_CHECKING:
    from grasp_deploy.report.figure_style import Drawing

HEADS = ("model", "tokens/s", "Δ", "TTFT, ms", "Δ", "TPOT, ms", "Δ")
LATENCIES = {"ttft": "Time to the first token", "tpot": "Time per output token"}
NOTES = (
    "tokens/s of output: median ± half the range of the repetitions; Δ: mean change against the "
    "first model, repetition by repetition; the verdicts say if it is more than noise",
)


@dataclass(frozen=True)
class Gain:
    """How many times the first model's throughput a model has at one batch."""

    cell: Cell
    measured: Difference
    ideal: float


def gains(record: ThroughputRecord) -> list[Gain]:
    """The gains of all models but the first, where both were measured."""
    pairs = [
        (dense, cell)
        for cell in record.cells
        if cell.samples and (dense := record.dense_cell(cell)) and dense.samples
    ]
    results = differences([(dense.rates, cell.rates) for dense, cell in pairs])
    sizes = record.footprints
    return [
        Gain(cell, result, ideal_gain(sizes[dense.model], sizes[cell.model], dense))
        for (dense, cell), result in zip(pairs, results, strict=True)
    ]


def ideal_gain(dense: Footprint, pruned: Footprint, cell: Cell) -> float:
    """The ideal gain from the prompt to the last token.

    `cell` is the first model's, whose samples split its time into prefill and decode.
    """
    prefill = prefill_operations(dense, cell) / prefill_operations(pruned, cell)
    decode = decode_step_bytes(dense, cell) / decode_step_bytes(pruned, cell)
    seconds = statistics.median(sample.seconds for sample in cell.samples)
    ttft = statistics.median(sample.ttft_seconds for sample in cell.samples)
    return seconds / (ttft / prefill + max(0.0, seconds - ttft) / decode)


def decode_step_bytes(footprint: Footprint, cell: Cell) -> float:
    """Bytes that one decode step moves: the weights, and the cache of the batch half-way through.

    Step i finds `prompt_tokens + i` tokens of each sequence cached, so their mean is the prompt and
    half of the new tokens. An embedding is not read, unless it is the output projection too.
    """
    cached_tokens = cell.batch * (cell.prompt_tokens + cell.new_tokens / 2)
    weight_bytes = footprint.weight_bytes
    if not footprint.tied_embeddings:
        width = weight_bytes // footprint.parameters
        weight_bytes -= footprint.vocab_size * footprint.hidden_size * width
    return weight_bytes + cached_tokens * footprint.kv_bytes_per_token


def prefill_operations(footprint: Footprint, cell: Cell) -> float:
    """Floating-point operations of a prefill, a multiplication and an addition being two.

    Linear layers and causal `QK^T` and `PV` at every position; logits of the last position only.
    """
    d, head_dim, tokens = footprint.hidden_size, footprint.head_dim, cell.prompt_tokens
    pairs = tokens * (tokens + 1) / 2  # positions that a query sees, summed over the queries
    operations = 2.0 * d * footprint.vocab_size
    for layer in footprint.layers:
        query_width = layer.num_attention_heads * head_dim
        kv_width = layer.num_key_value_heads * head_dim
        weights = d * (2 * query_width + 2 * kv_width + 3 * layer.intermediate_size)
        operations += 2 * tokens * weights + 4 * pairs * query_width
    return cell.batch * operations


def throughput_table(record: ThroughputRecord) -> Table:
    """Output tokens per second, TTFT and TPOT of each model, one batch size at a time."""
    table = figure_table(f"Throughput: {record.settings.title}", HEADS, NOTES, fold=False)
    for cells in grouped(record.cells, lambda cell: cell.batch):
        table.add_row(Text(f"batch {cells[0].batch:,}", style="bold"))
        for cell in cells:
            table.add_row(Text(cell.model), *_figures(cell, record.dense_cell(cell)))
        table.add_section()
    return table


def _figures(cell: Cell, dense: Cell | None) -> list[str]:
    if not cell.samples:
        return ["does not fit"]
    row = [with_spread(cell.rates), paired_change(cell.rates, dense.rates if dense else [])]
    for name in LATENCIES:
        values = cell.seconds(name)
        row += [number(1000 * statistics.median(values)) if values else ""]
        row += [paired_change(values, dense.seconds(name) if dense else [])]
    return row


def gain_table(record: ThroughputRecord) -> Table:
    """Ratios to the first model, their intervals and the ideal, point by point."""
    heads = ("model and batch", "ratio", "interval", "ideal", "verdict")
    table = figure_table("Throughput against the first model", heads, fold=False)
    for rows in grouped(gains(record), lambda gain: gain.cell.model):
        table.add_row(Text(rows[0].cell.model, style="bold"))
        for gain in rows:
            measured = gain.measured
            table.add_row(
                f"batch {gain.cell.batch:,}",
                f"{measured.ratio:.2f}x",
                "{:.2f}-{:.2f}".format(*measured.interval) if measured.interval else "",
                f"{gain.ideal:.2f}x",
                "within noise" if measured.outcome == NO_DIFFERENCE else measured.outcome,
            )
        table.add_section()
    return table


def headlines(record: ThroughputRecord) -> list[dict[str, Any]]:
    """For each model one sentence over all batches.

    Batches that did not fit are named as well, also those of the first model.
    """
    lines = []
    for cells in grouped((c for c in record.cells if not c.samples), lambda cell: cell.model):
        batches = listed(cell.batch for cell in cells)
        refusal = f"not measured at batch {batches}: {cells[0].refused}."
        lines.append(record.line(cells[0].model, "not measured", refusal))
    for rows in grouped(gains(record), lambda gain: gain.cell.model):
        outcome = common_outcome(gain.measured.outcome for gain in rows)
        lines.append(record.line(rows[0].cell.model, outcome, _sentence(rows, record.baseline)))
    return lines


def _sentence(rows: Sequence[Gain], baseline: str) -> str:
    ratios = span([gain.measured.ratio for gain in rows], ".2f", "x")
    ideals = span([gain.ideal for gain in rows], ".2f", "x")
    batches = span([gain.cell.batch for gain in rows], ",")
    outcomes = points_by_outcome([(gain.measured.outcome, gain.cell.batch) for gain in rows])
    if rows[0].measured.outcome == UNDECIDED:
        outcomes = TOO_FEW.format(len(rows[0].cell.samples))
    return f"{ratios} the throughput of {baseline} at batch {batches} (ideal {ideals}): {outcomes}."


def figures(record: ThroughputRecord) -> Iterator[Drawing]:
    """Tokens per second, their ratio to the first model beside the ideal, and latencies."""

    def drawn(name: str, title: str, unit: str, cells: Sequence[Cell], **curves: Any) -> Drawing:
        note = f"{record.settings.title}; {of_repetitions('median', len(cells[0].samples))}"
        labels = "batch size, sequences", unit
        return line_drawing(record, (name, title, note), labels, cells, lambda c: c.batch, curves)

    def milliseconds(name: str) -> Callable[[Cell], float]:
        return lambda cell: 1000 * statistics.median(cell.seconds(name))

    cells = [cell for cell in record.cells if cell.samples]
    title, unit = "Output tokens per second", "tokens per second"
    yield drawn("throughput", title, unit, cells, rate=lambda cell: statistics.median(cell.rates))
    found = {(gain.cell.model, gain.cell.batch): gain for gain in gains(record)}
    if found:
        yield drawn(
            "throughput-ratio",
            f"Throughput against {record.baseline}",
            "times the first model",
            [gain.cell for gain in found.values()],
            measured=lambda cell: found[cell.model, cell.batch].measured.ratio,
            ideal=lambda cell: found[cell.model, cell.batch].ideal,
        )
    for name, title in LATENCIES.items():
        if timed := [cell for cell in cells if cell.seconds(name)]:
            yield drawn(name, title, "milliseconds", timed, latency=milliseconds(name))
