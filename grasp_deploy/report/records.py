"""Reading the records that a report is drawn from, and refusing those it cannot be drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grasp_deploy.errors import InputError
from grasp_deploy.files.record import read_record
from grasp_deploy.report.record_sense import mixed_up
from grasp_deploy.report.record_shape import (
    POSITIVE,
    POSITIVE_INT,
    AnyNumber,
    OrNull,
    wrong,
    wrong_if_there,
)

KINDS = {
    "throughput": "Throughput and latency",
    "memory": "Prefill memory",
    "kv": "KV cache",
    "serve": "Load on the live server",
    "tasks": "Accuracy on tasks",
}
SIZES = dict.fromkeys(("weight_bytes", "kv_bytes", "peak_bytes", "other_bytes"), int)
HELD = {"cached_tokens": int, "sequences": int}
PERCENTILES = dict.fromkeys(("p50", "p90", "p99"), float)
LOAD = {"max_concurrency": OrNull(POSITIVE_INT), "request_rate": OrNull(POSITIVE)}
LAYER = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
FOOTPRINT = {
    **dict.fromkeys(("parameters", "weight_bytes", "kv_bytes_per_token"), POSITIVE),
    **{"head_dim": POSITIVE, "distinct_shapes": POSITIVE},
    "layers": [dict.fromkeys(LAYER, POSITIVE)],
}
# What settings hold where they hold it, and what a cell must hold (shapes of `record_shape`).
SETTINGS: dict[str, dict[str, Any]] = {
    "kv": {"memory_bytes": OrNull(POSITIVE)},
    "serve": {
        **dict.fromkeys(("requests", "prompt_tokens", "new_tokens"), POSITIVE_INT),
        "server_flags": OrNull(AnyNumber(str)),
    },
}
CELLS: dict[str, dict[str, Any]] = {
    "throughput": {
        **{"model": str, "engine": str, "batch": POSITIVE},
        **{"prompt_tokens": POSITIVE, "new_tokens": POSITIVE},
        "samples": AnyNumber(
            {"seconds": POSITIVE, "ttft_seconds": POSITIVE, "tpot_seconds": OrNull(float)}
        ),
    },
    "memory": {
        **{"model": str, "prompt_tokens": int, "batch": int},
        **{"predicted": SIZES, "measured": SIZES},
    },
    "kv": {
        **{"model": str, "memory_bytes": POSITIVE_INT, "context_tokens": POSITIVE_INT},
        **{"kv_bytes_per_token": POSITIVE_INT, "layer_kv_bytes_per_token": [POSITIVE_INT]},
        **{"predicted": HELD, "measured": OrNull(HELD)},
    },
    "serve": {
        **{"model": str, "requests": POSITIVE_INT, "load": LOAD},
        "samples": AnyNumber(
            {
                **{"completed": int, "failed": int, "output_tokens_per_second": float},
                **dict.fromkeys(("ttft_seconds", "tpot_seconds", "e2e_seconds"), PERCENTILES),
                "goodput_requests_per_second": OrNull(float),
            }
        ),
    },
    "tasks": {
        **{"model": str, "task": str, "metric": str, "accuracy": float, "truncated": int},
        **{"standard_error": OrNull(float), "num_fewshot": OrNull(int), "prompts_sha256": str},
        "items": [{"item": int}],
    },
}

EXTRAS: dict[str, dict[str, Any]] = {  # what samples hold where they hold it
    "throughput": {"joules": OrNull(float)},
    "serve": {"itl_seconds": PERCENTILES},
}


@dataclass(frozen=True)
class NamedRecord:
    """A record and what files drawn from it are called after."""

    name: str
    record: dict[str, Any]

    @property
    def title(self) -> str:
        kind = str(self.record["benchmark"])
        return KINDS.get(kind, kind.replace("_", " ").capitalize())


def read_records(paths: Sequence[Path]) -> list[NamedRecord]:
    """The records in these files, each checked; InputError for one that is none, damaged or twice.

    Their names are those of the files, with a number where two are the same.
    """
    records: list[NamedRecord] = []
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise InputError(f"{path} is named twice: name each record once")
        seen.add(path.resolve())
        record = read_record(path)
        check_record(record, path)
        taken = sum(named.name.partition("#")[0] == path.stem for named in records)
        records.append(NamedRecord(f"{path.stem}#{taken + 1}" if taken else path.stem, record))
    return records


def check_record(record: Mapping[str, Any], path: Path) -> None:
    """InputError if a record of a known kind lacks what tables and figures are drawn from."""
    kind = record["benchmark"]
    found = wrong(record, {"benchmark": str, "settings": {}, "machine": {}}, "it")
    if not found and kind in CELLS:
        found = (
            wrong(record, {"models": [{"name": str, "footprint": FOOTPRINT}]}, "it")
            or wrong(record, {"cells": [CELLS[kind]]}, "it")
            or _wrong_extras(record)
            or mixed_up(record)
        )
    if found:
        raise InputError(
            f"{path} is no whole record of {kind}: {found}; run its command again, or name another"
        )


def _wrong_extras(record: Mapping[str, Any]) -> str:
    """What is wrong with what a record may do without."""
    kind, settings = record["benchmark"], record["settings"]
    found = wrong_if_there(settings, SETTINGS.get(kind, {}), "settings")
    if kind == "serve" and "prompt_tokens" in settings:  # its title tells the whole load
        found = found or wrong(settings, {"requests": None, "new_tokens": None}, "settings")
    if found or kind not in EXTRAS:
        return found
    return next(
        filter(
            None,
            (
                wrong_if_there(sample, EXTRAS[kind], f"cells[{index}].samples[{number}]")
                for index, cell in enumerate(record["cells"])
                for number, sample in enumerate(cell["samples"])
            ),
        ),
        "",
    )
