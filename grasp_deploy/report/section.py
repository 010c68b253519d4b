"""One record as the parts that terminal, page and figure files are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:  # matplotlib is needed only where figures are drawn
    from grasp_deploy.report.figure_style import Drawing

Line = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A record with what draws it, filled in where the record's kind is known.

    `headlines` and `verdicts` are JSON objects with `model`, `outcome` and `sentence`; a headline
    with `reason` explains the one before it. Tables and figures are made only where they are
    needed. `models` are the record's models with their `footprint`, whose kept layers a page draws
    once for all sections of the same models.
    """

    name: str  # of the record's file; figures are called after it
    title: str
    record: Mapping[str, Any]  # as it was read; empty if the section has none of its own
    tables: Callable[[], list[Table]]
    headlines: list[Line] = field(default_factory=list)
    verdicts: list[Line] = field(default_factory=list)
    figures: Callable[[], list[Drawing]] = list
    models: Sequence[Mapping[str, Any]] = ()
