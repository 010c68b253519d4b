"""Reading the records that a report is drawn from, and refusing those it cannot be drawn from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grasp_deploy.errors import InputError
from grasp_deploy.record import read_record

KINDS = {
    "throughput": "Throughput and latency",
    "memory": "Prefill memory",
    "kv": "KV cache",
    "serve": "Load on the live server",
    "quality": "Quality",
    "tasks": "Accuracy on tasks",
    "startup": "Start of the server",
}
POSITIVE = "a positive number"
SIZES = dict.fromkeys(("weight_bytes", "kv_bytes", "peak_bytes", "other_bytes"), int)
HELD = {"cached_tokens": int, "sequences": int}
LAYER = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
FOOTPRINT = {
    **dict.fromkeys(("parameters", "weight_bytes", "kv_bytes_per_token"), POSITIVE),
    **{"head_dim": POSITIVE, "distinct_shapes": POSITIVE},
    "layers": [dict.fromkeys(LAYER, POSITIVE)],
}
# What a cell must hold: a type, an object of such, or a list whose every item is such. None is
# anything.
CELLS: dict[str, dict[str, Any]] = {
    "throughput": {
        **{"model": str, "engine": str, "batch": POSITIVE},
        **{"prompt_tokens": POSITIVE, "new_tokens": POSITIVE},
        "samples": [{"seconds": POSITIVE, "ttft_seconds": POSITIVE, "tpot_seconds": None}],
    },
    "memory": {
        **{"model": str, "prompt_tokens": int, "batch": int},
        **{"predicted": SIZES, "measured": SIZES},
    },
    "kv": {
        **{"model": str, "memory_bytes": int, "context_tokens": int, "predicted": HELD},
        "measured": None,  # may be null
    },
    "serve": {
        **{"model": str, "requests": int, "load": {"max_concurrency": None, "request_rate": None}},
        "samples": [
            {
                **{"completed": int, "failed": int, "output_tokens_per_second": float},
                **{key: {} for key in ("ttft_seconds", "tpot_seconds", "e2e_seconds")},
            }
        ],
    },
    "quality": {"model": str, "corpus": str, "perplexity": POSITIVE},
    "startup": {
        "model": str,
        "cold_seconds": {"median": POSITIVE, "samples": [POSITIVE]},
        "warm_seconds": {"median": POSITIVE, "samples": [POSITIVE]},
    },
    "tasks": {
        **{"model": str, "task": str, "metric": str, "accuracy": float, "truncated": int},
        **{"standard_error": None, "num_fewshot": None, "prompts_sha256": str},
        "items": [{"item": int}],
    },
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
    wrong = _wrong(record, {"benchmark": str, "settings": {}, "machine": {}}, "it")
    if not wrong and kind in CELLS:
        wrong = _wrong(record, {"models": [{"name": str, "footprint": FOOTPRINT}]}, "it")
        wrong = wrong or _wrong(record, {"cells": [CELLS[kind]]}, "it") or _mixed_up(record)
    if wrong:
        raise InputError(
            f"{path} is no whole record of {kind}: {wrong}; run its command again, or name another"
        )


def _wrong(value: Any, wanted: Any, where: str) -> str:
    """What is missing or of another type, in words; empty if nothing is."""
    if wanted is None:
        return ""
    if isinstance(wanted, dict):
        return _wrong_mapping(value, wanted, where)
    if isinstance(wanted, list):
        return _wrong_list(value, wanted[0], where)
    if wanted is str:
        return "" if isinstance(value, str) else f"{where} is no text"
    kinds = int if wanted is int else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value):
        return f"{where} is no number"
    too_small = value < 0 or (wanted is POSITIVE and value == 0)
    return f"{where} is {value:g}, which cannot be" if too_small else ""


def _wrong_list(value: Any, wanted: Any, where: str) -> str:
    if not isinstance(value, list) or (not value and not where.endswith(".samples")):
        return f"{where} is no list of at least one"
    found = (_wrong(item, wanted, f"{where}[{index}]") for index, item in enumerate(value))
    return next(filter(None, found), "")


def _wrong_mapping(value: Any, wanted: dict[str, Any], where: str) -> str:
    if not isinstance(value, dict):
        return f"{where} is no object"
    missing = [key for key in wanted if key not in value]
    if missing:
        return f"{where} has no {missing[0]}"
    found = (
        _wrong(value[key], inner, key if where == "it" else f"{where}.{key}")
        for key, inner in wanted.items()
    )
    return next(filter(None, found), "")


def _mixed_up(record: Mapping[str, Any]) -> str:
    """Whether cells speak of models that the record does not have, or do not pair up."""
    names = [model["name"] for model in record["models"]]
    if len(set(names)) < len(names):
        return "two of its models have one name"
    for index, cell in enumerate(record["cells"]):
        if cell["model"] not in names:
            return f"cells[{index}] is of a model {cell['model']!r} that it does not have"
    if record["benchmark"] in ("throughput", "serve"):
        return _unpaired(record["cells"])
    if record["benchmark"] == "tasks":
        return _unlike_tasks(record["cells"], names)
    return ""


def _unlike_tasks(cells: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Whether models have run different tasks, or an item lacks its task's figure."""
    tasks = [[cell["task"] for cell in cells if cell["model"] == name] for name in names]
    if any(of_model != tasks[0] for of_model in tasks):
        return "its models have not run the same tasks"
    for index, cell in enumerate(cells):
        metric = cell["metric"].partition(",")[0]
        if not all(metric in item for item in cell["items"]):
            return f"cells[{index}] has an item without {metric}"
    return ""


def _unpaired(cells: Sequence[Mapping[str, Any]]) -> str:
    """Whether cells at one point have different numbers of repetitions."""
    keys = ("engine", "batch", "prompt_tokens", "new_tokens", "load")
    repetitions: dict[str, int] = {}
    for index, cell in enumerate(cells):
        point = str([cell.get(key) for key in keys])
        if not cell["samples"]:  # nothing could be measured there
            continue
        if repetitions.setdefault(point, len(cell["samples"])) != len(cell["samples"]):
            return f"cells[{index}] has another number of repetitions than others at its point"
    return ""
