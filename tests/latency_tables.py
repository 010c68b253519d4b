"""Tables as `table` writes them, whose times lie on a line: test data only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import to_builtins

from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.config.latency_options import LatencySettings
from grasp_deploy.files.record import new_record, write_record

DECODE, PREFILL = 0.010, 0.200  # seconds of the dense model
FFN, KV = 0.4, 0.2  # of these; the rest is fixed
AT = {"batch": 8, "context": 64}


def table_record(shape: ModelShape, **settings: Any) -> dict[str, Any]:
    """Widths of half and a quarter, half the groups, both halved; three rounds, two of them slow.

    Repetitions of a model and of the dense one beside it slow down alike.
    """
    layer = shape.layers[0]
    cells = []
    for ffn, kv in ((0.25, 1.0), (0.5, 1.0), (1.0, 0.5), (0.5, 0.5)):
        share = 1 - FFN * (1 - ffn) - KV * (1 - kv)
        samples = [[_times(one * slow) for slow in (1.0, 1.3, 0.9)] for one in (share, 1.0)]
        sizes = {
            "ffn_channels": round(layer.intermediate_size * ffn),
            "kv_groups": round(layer.num_key_value_heads * kv),
        }
        cells.append({**sizes, **AT, "samples": samples[0], "dense_samples": samples[1]})
    default = {"engine": "transformers", "batches": (8,), "contexts": (64,), "device": "cpu"}
    made = LatencySettings(**{**default, "tile": 8, "new_tokens": 8, **settings})
    models = [{"name": "dense", "footprint": footprint(shape).as_dict()}]
    record = new_record("latency", ["grasp-deploy", "table"], made, models=models, cells=cells)
    return dict(to_builtins(record))


def write_table(model: Path, path: Path, **settings: Any) -> dict[str, Any]:
    """Write a table for the model in a folder; returns the options that ask for it."""
    write_record(path, table_record(model_shape(read_config(model)), **settings))
    return {"table": str(path), **AT}


def _times(factor: float) -> dict[str, float]:
    return {"ttft_seconds": PREFILL * factor, "tpot_seconds": DECODE * factor}
