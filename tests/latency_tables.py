"""Tables as `table` writes them, whose times lie on a line: test data only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import to_builtins

from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.compression.table_shapes import sizes_to_measure
from grasp_deploy.config.latency_options import LatencySettings
from grasp_deploy.files.record import new_record, write_record

DECODE, PREFILL = 0.010, 0.200  # seconds of the dense model
FFN, KV = 0.4, 0.2  # of these; the rest is fixed
AT = {"batch": 8, "context": 64}


def table_record(shape: ModelShape, **settings: Any) -> dict[str, Any]:
    """All sizes of the settings, four steps of both kinds; three rounds, two of them slow.

    Repetitions of a model and of the dense one beside it slow down alike.
    """
    layer = shape.layers[0]
    default = {"engine": "transformers", "batches": (8,), "contexts": (64,), "device": "cpu"}
    few = {"tile": 8, "steps": 4, "new_tokens": 8, "repetitions": 3}
    made, cells = LatencySettings(**{**default, **few, **settings}), []
    for sizes in sizes_to_measure(shape, made):
        ffn = sizes.ffn_channels / layer.intermediate_size
        kv = sizes.kv_groups / layer.num_key_value_heads
        share = 1 - FFN * (1 - ffn) - KV * (1 - kv)
        samples = [[_times(one * slow) for slow in (1.0, 1.3, 0.9)] for one in (share, 1.0)]
        both = {"samples": samples[0], "dense_samples": samples[1]}
        cells.append({**sizes._asdict(), **AT, **both})
    models = [{"name": "dense", "footprint": footprint(shape).as_dict()}]
    record = new_record("latency", ["grasp-deploy", "table"], made, models=models, cells=cells)
    return dict(to_builtins(record))


def write_table(model: Path, path: Path, **settings: Any) -> dict[str, Any]:
    """Write a table for the model in a folder; returns the options that ask for it."""
    write_record(path, table_record(model_shape(read_config(model)), **settings))
    return {"table": str(path), **AT}


def _times(factor: float) -> dict[str, float]:
    return {"ttft_seconds": PREFILL * factor, "tpot_seconds": DECODE * factor}
