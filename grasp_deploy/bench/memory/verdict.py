"""Memory against its prediction, and the peak of a smaller model against the first model's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grasp_deploy.bench.memory.record import Cell, MemoryRecord
from grasp_deploy.bench.prediction import AS_PREDICTED, prediction_outcome
from grasp_deploy.stats.wording import common_outcome, counted, grouped, points_by_outcome, span

PEAK_TOLERANCE = 0.1  # activations depend on kernels, of which config.json says nothing
PEAK_NOT_AS_PREDICTED = "peak not as predicted"


def memory_verdicts(record: MemoryRecord) -> list[dict[str, Any]]:
    """One JSON row for each cell; `error` is the larger one of weights and KV cache.

    `change` is that of the peak against the first model, None for the first model itself.
    """
    return [
        {
            "benchmark": "memory",
            "model": cell.model,
            "baseline": record.baseline,
            "prompt_tokens": cell.prompt_tokens,
            "batch": cell.batch,
            "peak_bytes": cell.measured.peak_bytes,
            "change": _change(record, cell),
            "error": cell.error,
            "peak_error": cell.peak_error,
            "outcome": _outcome(cell),
        }
        for cell in record.cells
    ]


def memory_headlines(record: MemoryRecord) -> list[dict[str, Any]]:
    """One sentence for each model over all its points."""
    groups = grouped(record.cells, lambda cell: cell.model)
    return [_headline(record, cells) for cells in groups]


def _headline(record: MemoryRecord, cells: Sequence[Cell]) -> dict[str, Any]:
    peaks = span([cell.measured.peak_bytes / 2**20 for cell in cells], ",.1f", " MiB")
    changes = [change for cell in cells if (change := _change(record, cell)) is not None]
    against = f" ({span(changes, '+.1%')} against {record.baseline})" if changes else ""
    exact = points_by_outcome([(prediction_outcome(c.error), c.prompt_tokens) for c in cells])
    error = max((cell.error for cell in cells), key=abs)
    worst = f"{error:+.2%} at worst" if error else "equal"
    peak_error = max((cell.peak_error for cell in cells), key=abs)
    return {
        "benchmark": "memory",
        "model": cells[0].model,
        "baseline": record.baseline,
        "outcome": common_outcome(map(_outcome, cells)),
        "sentence": f"prefill peak {peaks}{against}, over {counted(len(cells), 'point')}; weights "
        f"and KV cache {exact} ({worst}); the peak at most {peak_error:+.1%} from its prediction.",
    }


def _outcome(cell: Cell) -> str:
    outcome = prediction_outcome(cell.error)
    if outcome == AS_PREDICTED and abs(cell.peak_error) > PEAK_TOLERANCE:
        return PEAK_NOT_AS_PREDICTED
    return outcome


def _change(record: MemoryRecord, cell: Cell) -> float | None:
    dense = record.dense_cell(cell)
    return cell.measured.peak_bytes / dense.measured.peak_bytes - 1 if dense else None
