"""Figures of records, drawn with matplotlib for paper and page; nothing else draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from grasp_deploy.bench.memory.plot import kv_drawings, memory_drawings
from grasp_deploy.bench.serve.plot import serve_drawings
from grasp_deploy.bench.throughput.plot import throughput_drawings
from grasp_deploy.report.figure_style import PNG_MARK as PNG_MARK
from grasp_deploy.report.figure_style import Drawing as Drawing
from grasp_deploy.report.figure_style import color_rules as color_rules
from grasp_deploy.report.figure_style import our_style
from grasp_deploy.report.figure_style import png as png
from grasp_deploy.report.figure_style import svg as svg
from grasp_deploy.report.plots.shapes import kept_drawings, quality_drawings
from grasp_deploy.report.plots.startup import startup_drawings
from grasp_deploy.report.plots.study import study_drawings

DRAWERS: dict[str, Callable[[dict[str, Any]], Iterator[Drawing]]] = {
    "throughput": throughput_drawings,
    "memory": memory_drawings,
    "kv": kv_drawings,
    "serve": serve_drawings,
    "quality": quality_drawings,
    "startup": startup_drawings,
    "study": study_drawings,
}


def drawings(record: dict[str, Any]) -> list[Drawing]:
    """The figures of one record; none for a kind that is not drawn."""
    drawer = DRAWERS.get(record["benchmark"])
    if drawer is None:
        return []
    with our_style():
        return list(drawer(record))


def shape_drawings(records: Iterable[dict[str, Any]]) -> list[list[Drawing]]:
    """For each record what each layer keeps; none for models that an earlier one has too."""
    seen: list[Any] = []
    found: list[list[Drawing]] = []
    with our_style():
        for record in records:
            of_models = record["benchmark"] in DRAWERS and "models" in record  # a study has none
            fresh = of_models and record["models"] not in seen
            found.append(list(kept_drawings(record)) if fresh else [])
            if fresh:
                seen.append(record["models"])
    return found
