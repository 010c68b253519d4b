"""The figures of records as PNG files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from grasp_deploy.report.plots import PNG_MARK as PNG_MARK
from grasp_deploy.report.plots import drawings, png, shape_drawings
from grasp_deploy.report.records import NamedRecord


def pictures(records: Sequence[NamedRecord]) -> dict[str, bytes]:
    """Name and content of a PNG file for each figure, called after its record."""
    of_shapes = shape_drawings(named.record for named in records)
    return {
        f"{_file_name(named.name)}-{drawing.name}.png": png(drawing)
        for named, shapes in zip(records, of_shapes, strict=True)
        for drawing in [*drawings(named.record), *shapes]
    }


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)
