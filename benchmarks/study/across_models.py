"""One study on several models: what each way of compressing loses on each, side by side."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from grasp_deploy.report.records import NamedRecord
from grasp_deploy.report.study_tables import runs, variants

Record = Mapping[str, Any]


def across_models(records: Sequence[NamedRecord]) -> list[dict[str, Any]]:
    """For each study that at least two models went through, their losses under shared budgets.

    A study has `study`, `models` (`name`, `record` and `dense_perplexity` by corpus) and `cells`:
    `variant`, `keep`, `model`, `excess_nats` (loss above the dense model's in nats per token, the
    mean over the model's corpora and seeds), `half_range` over `seeds`. A budget is shared if two
    models or more were compressed under it.
    """
    studies: dict[str, list[NamedRecord]] = {}
    for named in records:
        if named.record["benchmark"] == "study":
            studies.setdefault(named.record["study"], []).append(named)
    found = []
    for study, some in studies.items():
        models = _named_models(some)
        if len({_model(named) for named in some}) > 1 and (cells := _cells(models)):
            listed = [_described(name, named) for name, named in models.items()]
            found.append({"study": study, "models": listed, "cells": cells})
    return found


def _model(named: NamedRecord) -> str:
    """The last part of its model's place; the record's own name where it does not tell."""
    place = named.record["settings"].get("model")
    return PurePath(place).name if isinstance(place, str) and PurePath(place).name else named.name


def _named_models(records: Sequence[NamedRecord]) -> dict[str, NamedRecord]:
    """Records by their models; the second of one name is called so with a number."""
    models, seen = {}, Counter[str]()
    for named in records:
        name = _model(named)
        seen[name] += 1
        models[f"{name}#{seen[name]}" if seen[name] > 1 else name] = named
    return models


def _described(name: str, named: NamedRecord) -> dict[str, Any]:
    dense = named.record["dense_perplexity"]
    return {"name": name, "record": named.name, "dense_perplexity": dense}


def _cells(models: Mapping[str, NamedRecord]) -> list[dict[str, Any]]:
    records = {name: named.record for name, named in models.items()}
    measured = Counter(
        keep for record in records.values() for keep in {row["keep"] for row in record["rows"]}
    )
    shared = sorted((keep for keep, count in measured.items() if count > 1), reverse=True)
    names = dict.fromkeys(variant for record in records.values() for variant in variants(record))
    return [
        {"variant": variant, "keep": keep, "model": name, **_loss(some)}
        for variant in names
        for keep in shared
        for name, record in records.items()
        if (some := runs(record, variant, keep))
    ]


def _loss(rows: Sequence[Record]) -> dict[str, Any]:
    """The mean over corpora of each seed; then that over seeds, and half their range."""
    losses = [statistics.fmean(row["excess_nats"].values()) for row in rows]
    half = (max(losses) - min(losses)) / 2
    return {"excess_nats": statistics.fmean(losses), "half_range": half, "seeds": len(losses)}
