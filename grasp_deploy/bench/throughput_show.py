"""Throughput and latency, as tables, sentences and figures: faster, slower, or neither.

Beside a measured gain stands the ideal one. Decoding reads every weight once a step, whatever the
batch, and the cached keys and values of all sequences; it reads and writes their states of linear
attention. Its ideal gain is the ratio of these bytes.
Prefill reads the weights once for thousands of tokens, so its ideal gain is the ratio of the
floating-point operations. The embedding is a look-up and counts for neither. The output projection
counts for both, tied or not. Of experts only those count that the tokens can take.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.bench.record import MeasuredModel
from grasp_deploy.bench.show import (
    cell_table,
    gain_in_words,
    gains,
    line_drawing,
    number,
    paired_change,
    rate_cells,
)
from grasp_deploy.bench.throughput import Cell, ThroughputRecord
from grasp_deploy.checkpoint.footprint import Footprint
from grasp_deploy.report.section import Drawing
from grasp_deploy.report.tables import add_group, figure_table
from grasp_deploy.stats.noise import NO_DIFFERENCE, Difference, of_repetitions
from grasp_deploy.stats.wording import common_outcome, grouped, listed, span

HEADS = ("model", "tokens/s", "Δ", "TTFT, ms", "Δ", "TPOT, ms", "Δ")
LATENCIES = {"ttft": "Time to the first token", "tpot": "Time per output token"}
NOTES = (
    "tokens/s of output: median ± half the range of the repetitions; Δ: mean change against the "
    "first model, repetition by repetition; the verdicts say if it is more than noise",
)
GAIN_HEADS = ("model and batch", "ratio", "interval", "ideal", "verdict")
Gain = tuple[Cell, Difference, float]  # a model at a batch, its rate over the first's, the ideal


def gains_by_model(record: ThroughputRecord) -> list[list[Gain]]:
    """Gains over the first model, grouped by model, at the batches where both were measured."""
    models = {model.name: model for model in record.models}
    found = [
        (cell, result, ideal_gain(models[dense.model], models[cell.model], dense))
        for dense, cell, result in gains(record, lambda cell: bool(cell.samples))
    ]
    return grouped(found, lambda gain: gain[0].model)


def ideal_gain(dense: MeasuredModel, pruned: MeasuredModel, cell: Cell) -> float:
    """The ideal gain from the prompt to the last token.

    `cell` is the first model's, whose samples split its time into prefill and decode.
    """
    prefill = prefill_operations(dense, cell) / prefill_operations(pruned, cell)
    decode = decode_step_bytes(dense, cell) / decode_step_bytes(pruned, cell)
    seconds = statistics.median(sample.seconds for sample in cell.samples)
    ttft = statistics.median(sample.ttft_seconds for sample in cell.samples)
    return seconds / (ttft / prefill + max(0.0, seconds - ttft) / decode)


def decode_step_bytes(model: MeasuredModel, cell: Cell) -> float:
    """Bytes that one decode step moves: weights, states, and the batch's cache half-way through.

    Step i finds `prompt_tokens + i` tokens of each sequence cached, so their mean is the prompt and
    half of the new tokens. Of these a layer reads what its window sees. An embedding is not read,
    unless it is the output projection too.
    """
    footprint, cached_tokens = model.footprint, cell.prompt_tokens + cell.new_tokens / 2
    cached_tokens -= model.windowed_share * max(0, cached_tokens - model.window_tokens)
    cache_bytes = cell.batch * cached_tokens * footprint.kv_bytes_per_token
    weight_bytes = footprint.weight_bytes
    if not footprint.tied_embeddings:
        width = int(footprint.dtype[-2:]) // 8  # embeddings are never quantised
        weight_bytes -= footprint.vocab_size * footprint.hidden_size * width
    untaken = _untaken(footprint, cell.batch)
    read_bytes = weight_bytes - untaken * footprint.weight_bytes / footprint.parameters
    state_bytes = 2 * cell.batch * footprint.state_bytes_per_sequence  # read and written
    return max(0, read_bytes) + cache_bytes + state_bytes


def prefill_operations(model: MeasuredModel, cell: Cell) -> float:
    """Floating-point operations of a prefill, a multiplication and an addition being two.

    Every weight at each position, `QK^T` and `PV` of what a query sees; logits of the last position
    only. The updates of linear attention's states are left out.
    """
    footprint, tokens = model.footprint, cell.prompt_tokens
    ends = footprint.vocab_size * footprint.hidden_size
    weights = footprint.parameters - _untaken(footprint, 1)
    weights -= ends if footprint.tied_embeddings else 2 * ends
    queries = footprint.head_dim * sum(layer.num_attention_heads for layer in footprint.layers)
    unseen = max(0, tokens - model.window_tokens)  # where a window hides them
    # Positions that a query sees, summed over the queries.
    pairs = (tokens * (tokens + 1) - model.windowed_share * unseen * (unseen + 1)) / 2
    return cell.batch * (2.0 * tokens * weights + 2 * ends + 4 * pairs * queries)


def _untaken(footprint: Footprint, tokens: int) -> int:
    """Parameters of the experts that so many tokens cannot take, as each takes a few of a layer."""
    most, matrices = tokens * footprint.experts_per_token, 3 * footprint.hidden_size
    return sum(
        max(0, layer.num_experts - most) * matrices * layer.intermediate_size
        for layer in footprint.layers
        if layer.num_experts is not None
    )


def tables(record: ThroughputRecord) -> list[Table]:
    """Rates and latencies of each model, batch by batch; ratios to the first beside the ideal."""
    title, batch = f"Throughput: {record.settings.title}", "batch {0.batch:,}".format
    measured = cell_table(record, title, HEADS, NOTES, batch, _figures)
    of_gains = figure_table("Throughput against the first model", GAIN_HEADS)
    for rows in gains_by_model(record):
        add_group(of_gains, rows[0][0].model, ([batch(row[0]), *_judged(*row)] for row in rows))
    return [measured, of_gains] if of_gains.row_count else [measured]


def _figures(cell: Cell, dense: Cell | None) -> list[str | Text]:
    if not cell.samples:
        return ["does not fit"]
    row = rate_cells(cell, dense)
    for name in LATENCIES:
        values = cell.seconds(name)
        row += [number(1000 * statistics.median(values)) if values else ""]
        row += [paired_change(values, dense.seconds(name) if dense else [])]
    return row


def _judged(_: Cell, measured: Difference, ideal: float) -> list[str]:
    interval = "{:.2f}-{:.2f}".format(*measured.interval) if measured.interval else ""
    verdict = "within noise" if measured.outcome == NO_DIFFERENCE else measured.outcome
    return [f"{measured.ratio:.2f}x", interval, f"{ideal:.2f}x", verdict]


def headlines(record: ThroughputRecord) -> Iterator[dict[str, Any]]:
    """For each model one sentence over all batches.

    Batches that did not fit are named as well, also those of the first model.
    """
    for cells in grouped((c for c in record.cells if not c.samples), lambda cell: cell.model):
        batches = listed(cell.batch for cell in cells)
        refusal = f"not measured at batch {batches}: {cells[0].refused}."
        yield record.line(cells[0].model, "not measured", refusal)
    for rows in gains_by_model(record):
        found = {cell.batch: difference for cell, difference, _ in rows}
        batches, ideals = span([*found], ","), span([ideal for *_, ideal in rows], ".2f", "x")
        what = f"the throughput of {record.baseline} at batch {batches} (ideal {ideals})"
        first, outcome = rows[0][0], common_outcome(one.outcome for one in found.values())
        sentence = gain_in_words(found, what, len(first.samples))
        yield record.line(first.model, outcome, f"{sentence}.")


def figures(record: ThroughputRecord) -> Iterator[Drawing]:
    """Tokens per second, their ratio to the first model beside the ideal, and latencies."""

    def drawn(name: str, title: str, unit: str, cells: Sequence[Cell], **curves: Any) -> Drawing:
        note = f"{record.settings.title}; {of_repetitions(len(cells[0].samples))}"
        labels = "batch size, sequences", unit
        return line_drawing(record, (name, title, note), labels, cells, lambda c: c.batch, curves)

    def milliseconds(name: str) -> Callable[[Cell], float]:
        return lambda cell: 1000 * statistics.median(cell.seconds(name))

    cells = [cell for cell in record.cells if cell.samples]
    title, unit = "Output tokens per second", "tokens per second"
    yield drawn("throughput", title, unit, cells, rate=lambda cell: statistics.median(cell.rates))
    found = {(gain[0].model, gain[0].batch): gain for gain in chain(*gains_by_model(record))}
    if found:
        yield drawn(
            "throughput-ratio",
            f"Throughput against {record.baseline}",
            "times the first model",
            [cell for cell in cells if (cell.model, cell.batch) in found],
            measured=lambda cell: found[cell.model, cell.batch][1].ratio,
            ideal=lambda cell: found[cell.model, cell.batch][2],
        )
    for name, title in LATENCIES.items():
        if timed := [cell for cell in cells if cell.seconds(name)]:
            yield drawn(name, title, "milliseconds", timed, latency=milliseconds(name))
