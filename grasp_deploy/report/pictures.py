"""The figures of records as PNG files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from grasp_deploy.report.plots import PNG_MARK as PNG_MARK
from grasp_deploy.report.plots import drawings, png, shape_drawings
from grasp_deploy.report.records import NamedRecord


def pictures(records: Sequence[NamedRecord]) -> dict[str, bytes]:
    """Name and content of a PNG file for each figure, called after its record."""
    found = {
        f"{_file_name(named.name)}-{drawing.name}.png": png(drawing)
        for named in records
        for drawing in drawings(named.record)
    }
    for drawing in shape_drawings(named.record for named in records):
        found[f"{drawing.name}.png"] = png(drawing)
    return found


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)
