"""The figures of sections, once for each, and as PNG files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from grasp_deploy.report.figure_style import Drawing, our_style, png
from grasp_deploy.report.layer_figures import kept_drawings
from grasp_deploy.report.section import Section


def figure_groups(sections: Sequence[Section]) -> Iterator[tuple[Section, list[Drawing]]]:
    """The figures of each section that has some."""
    with our_style():
        for section in sections:
            if drawings := section.figures():
                yield section, drawings


def layer_groups(sections: Sequence[Section]) -> Iterator[tuple[Section, list[Drawing]]]:
    """The figures of what layers keep, under the first section that has these models."""
    seen: list[Any] = []
    with our_style():
        for section in sections:
            if section.models and section.models not in seen:
                seen.append(section.models)
                if drawings := list(kept_drawings(section.models)):
                    yield section, drawings


def png_files(sections: Sequence[Section]) -> dict[str, bytes]:
    """PNG content by file name for each figure, named after its section."""
    return {
        f"{_file_name(section.name)}-{drawing.name}.png": png(drawing)
        for groups in (figure_groups, layer_groups)
        for section, drawings in groups(sections)
        for drawing in drawings
    }


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)
