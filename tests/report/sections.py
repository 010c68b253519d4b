"""Sections with made-up content: test data."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.report.figure_style import Drawing, finished, line_handle, new_axes
from grasp_deploy.report.section import Section

NASTY = 'a-very-long-name-<script>alert("1")</script>&amp;-that-goes-on-and-on-2026-01-02-b'


def model(name: str, *channels: int) -> dict[str, Any]:
    """A model of two KV heads in each layer, with so many FFN channels."""
    layers = [{"intermediate_size": count, "num_key_value_heads": 2} for count in channels]
    return {"name": name, "footprint": {"layers": layers}}


def record(command: str = "grasp-deploy bench") -> dict[str, Any]:
    return {
        "schema_version": 1,
        "benchmark": "made-up",
        "command": command,
        "machine": {"processor": "Test Processor 9000", "cores": 16},
        "settings": {"seed": 0},
    }


def line(outcome: str, sentence: str) -> dict[str, Any]:
    return {"model": NASTY, "outcome": outcome, "sentence": sentence}


def table() -> Table:
    made = Table(title="Some figures", caption="first note\nsecond note")
    made.add_column("model")
    made.add_column("tokens", justify="right")
    made.add_row(Text("a group", style="bold"))
    made.add_row(Text(NASTY), Text("1,234", "green"))
    return made


def drawing(name: str = "speed", labels: tuple[str, ...] = ("dense", "pruned")) -> Drawing:
    """Two lines or more with a legend."""
    axes = new_axes("Speed by batch size", "tokens per second; higher is better")
    for index, _ in enumerate(labels):
        axes.plot([1, 2, 4], [index, 2 + index, 3 + index])
    axes.set_xlabel("batch size")
    handles = [line_handle(index, label) for index, label in enumerate(labels)]
    return finished(name, "Speed by batch size", axes, handles)


def full_section(name: str = "speed-7b") -> Section:
    """A section with all that one may have."""
    return Section(
        name=name,
        title="Throughput",
        record=record(f"grasp-deploy bench '{NASTY}'"),
        tables=[table()],
        headlines=[
            line("faster", f"1.5 times as fast as {NASTY}."),
            line("9 requests failed", "9 of 90 requests failed."),
            line("mixed", "faster at one batch."),
        ],
        figures=lambda: [drawing()],
        models=[model("dense", 10, 20), model(NASTY, 5, 20)],
    )
