"""Why a smaller model may not be faster: what its shapes and the other cells make likely.

Nothing here is proven by the record; each reason says what was seen and what to try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from grasp_deploy.bench.ideal import Footprint

WIDE_TILE, NARROW_TILE = 64, 8  # channels that matrix kernels like to take at once
MANY_SHAPES = 4
TINY_WEIGHT_BYTES = 256 * 2**20
GROWTH = 1.05  # by how much the gain must grow with the batch to be called growing


@dataclass(frozen=True)
class Case:
    """A model that is slower than the first, or short of the ideal, at one point."""

    dense: Footprint
    pruned: Footprint
    batch: int
    gain_by_batch: dict[int, float]  # of this quantity, over all batch sizes of the record
    highest_gain: float  # the upper end of this point's interval
    record: dict[str, Any]  # its settings and machine


@dataclass(frozen=True)
class Reason:
    """A likely cause: its name, what was seen, and what to try."""

    reason: str
    seen: str
    remedy: str

    @property
    def sentence(self) -> str:
        return f"{self.seen[0].upper()}{self.seen[1:]}. To try: {self.remedy}."


def likely_reasons(case: Case) -> list[dict[str, str]]:
    """The causes that shapes and cells speak for, as `reason` and `sentence`; possibly none."""
    found = [reason for rule in RULES if (reason := rule(case)) is not None]
    return [{"reason": reason.reason, "sentence": reason.sentence} for reason in found]


def reason_lines(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """The reasons in verdicts of one model, each once, with these keys of the verdicts."""
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        for reason in row["reasons"]:
            shared = {key: row[key] for key in keys}
            lines.setdefault(reason["reason"], {**shared, "outcome": "likely reason", **reason})
    return list(lines.values())


def _tensor_parallel(case: Case) -> Reason | None:
    """vLLM copies a KV head to several workers where there are fewer heads than workers."""
    size, layers = tensor_parallel_size(case.record["settings"]), case.pruned["layers"]
    few = [i for i, layer in enumerate(layers) if layer["num_key_value_heads"] < size]
    if size == 1 or not few:
        return None
    return Reason(
        "tensor-parallel replication",
        f"{_layers(few, layers)} fewer KV heads than the {size} tensor-parallel workers, which "
        "each keep a copy and read it",
        f"compress with `--tensor-parallel {size}`, or serve with fewer workers",
    )


def _odd_widths(case: Case) -> Reason | None:
    """A GPU's matrix kernels work in tiles; a width that does not fill them is padded.

    On a CPU widths made no difference (benchmarks/aligned_shapes.py).
    """
    dense, layers = case.dense["layers"], case.pruned["layers"]
    if not _on_gpu(case.record) or len(dense) != len(layers):
        return None
    odd = [
        index
        for index, (before, after) in enumerate(zip(dense, layers, strict=True))
        if after["intermediate_size"] % WIDE_TILE and not before["intermediate_size"] % WIDE_TILE
    ]
    if not odd:
        return None
    very_odd = [index for index in odd if layers[index]["intermediate_size"] % NARROW_TILE]
    worse = f", {len(very_odd)} of them not even of {NARROW_TILE}" if very_odd else ""
    return Reason(
        "odd widths",
        f"{_layers(odd, layers)} FFN channels that are no multiple of {WIDE_TILE}{worse}, and "
        "matrix kernels are slower at such widths",
        "compress with `--ffn-multiple 128`",
    )


def _many_shapes(case: Case) -> Reason | None:
    shapes = case.pruned["distinct_shapes"]
    if shapes <= max(MANY_SHAPES, case.dense["distinct_shapes"]):
        return None
    return Reason(
        "many distinct shapes",
        f"the {len(case.pruned['layers'])} layers have {shapes} distinct shapes, and each costs "
        "the engine its own kernels, compiled pieces and metadata",
        "compress with larger `--ffn-multiple` and `--kv-multiple`",
    )


def _launch_bound(case: Case) -> Reason | None:
    """At small batches a step waits for kernels to start, whatever their size."""
    here = case.gain_by_batch[case.batch]
    best = max(
        (batch for batch in case.gain_by_batch if batch > case.batch),
        key=case.gain_by_batch.__getitem__,
        default=case.batch,
    )
    if case.gain_by_batch[best] < max(GROWTH * here, case.highest_gain):
        return None
    return Reason(
        "launch-bound small batches",
        f"the gain grows with the batch, from {here:.2f}x at {case.batch} to "
        f"{case.gain_by_batch[best]:.2f}x at {best}: a small batch waits for work to be "
        "started rather than done",
        f"serve larger batches{_graphs(case.record)}",
    )


def _tiny_model(case: Case) -> Reason | None:
    weight_bytes = case.dense["weight_bytes"]
    if weight_bytes >= TINY_WEIGHT_BYTES:
        return None
    return Reason(
        "tiny model",
        f"even the first model has only {weight_bytes / 2**20:,.1f} MiB of weights, so the "
        "engine's own work in each step weighs more than what was pruned",
        "measure a model of the size that is to be served",
    )


RULES: Sequence[Callable[[Case], Reason | None]] = (
    _tensor_parallel,
    _odd_widths,
    _launch_bound,
    _many_shapes,
    _tiny_model,
)


def tensor_parallel_size(settings: dict[str, Any]) -> int:
    """The workers that share each layer, by an option of the bench or a flag of the server."""
    size = str(settings.get("tensor_parallel"))
    flags = [*map(str, settings.get("server_flags") or ()), ""]
    for flag, value in pairwise(flags):
        name, _, inline = flag.partition("=")
        if name.replace("_", "-") in ("--tensor-parallel-size", "-tp"):
            size = inline or value
    return int(size) if size.isdigit() else 1


def _graphs(record: dict[str, Any]) -> str:
    """What helps small batches on a GPU, if it was not used: CUDA graphs."""
    settings = record["settings"]
    if not _on_gpu(record):
        return ""
    if settings.get("engine") == "transformers":
        return ", or serve with vLLM, which starts a whole step at once (CUDA graphs)"
    eager = settings.get("enforce_eager") or "--enforce-eager" in settings.get("server_flags", ())
    return ", and let vLLM use CUDA graphs (leave out `--enforce-eager`)" if eager else ""


def _on_gpu(record: dict[str, Any]) -> bool:
    return "gpu" in record["machine"] and record["settings"].get("device") != "cpu"


def _layers(some: Sequence[int], layers: Sequence[Any]) -> str:
    verb = "has" if len(some) == 1 else "have"
    return f"{len(some)} of {len(layers)} layers {verb}"
