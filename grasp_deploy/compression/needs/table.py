"""The rich tables of `compress --dry-run`: the ways to run it, and the stages of one."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from grasp_deploy.compression.needs.dry_run import DryRun
from grasp_deploy.compression.needs.memory import Needs
from grasp_deploy.files.sizes import BINARY_UNITS, format_bytes

BASIS = (
    "Predicted from config.json; kernels' workspaces are not counted. A way fits if a tenth of the "
    "memory stays free."
)
TIMED = "Times: operations over rates measured here, and assumed bandwidths; the order is meant."


def ways_table(found: DryRun) -> Table:
    """Memory of a device and of a machine, disk and time, for each number of processes."""
    sizes = [way.machine_bytes for way in found.ways]
    unit = "GiB" if max(sizes) >= BINARY_UNITS["GiB"] else "MiB"
    table = Table(
        title=f"What it takes to compress {Path(found.model).name}",
        title_justify="left",
        caption=BASIS + (f" {TIMED}" if found.rates else ""),
        caption_justify="left",
    )
    table.add_column("processes")
    heads = [f"a GPU,\n{unit}"] if found.on_gpu else []
    heads += [f"CPU memory\nof all, {unit}", f"disk,\n{unit}"]
    for head in [*heads, "time"] if found.rates else heads:
        table.add_column(head, justify="right", no_wrap=True)
    for way in found.ways:
        bytes_of = [way.device_bytes] if found.on_gpu else []
        bytes_of += [way.machine_bytes, way.disk_bytes]
        cells = [f"{size / BINARY_UNITS[unit]:,.1f}" for size in bytes_of]
        seconds = found.seconds(way)
        if seconds is not None:
            cells.append(duration(sum(seconds.values())))
        name = f"{way.case.processes}" + ", weights on the CPU" * way.case.offload
        table.add_row(name, *cells, style=None if found.fits(way) else "dim")
    return table


def stages_table(found: DryRun, way: Needs) -> Table:
    """The peak of each stage, and what takes most of it."""
    case, largest = way.case, max(way.stages(), key=way.size_of)
    where = "a GPU" if found.on_gpu else "the lead's process"
    table = Table(
        title=f"Stages on {case.processes}{', weights on the CPU' * case.offload}: {where}",
        title_justify="left",
        caption=f"The largest is {largest.stage}.",
        caption_justify="left",
    )
    for head in ("stage", "peak", "the most of it"):
        table.add_column(head, justify="right" if head == "peak" else "left")
    seconds = found.seconds(way)
    if seconds:
        table.add_column("time", justify="right")
    for phase in way.stages():
        name, size = max(way.terms_of(phase).items(), key=lambda term: term[1])
        cells = [format_bytes(way.size_of(phase), 1), f"{name}, {format_bytes(size, 1)}"]
        table.add_row(phase.stage, *cells, *([duration(seconds[phase.stage])] if seconds else []))
    return table


def duration(seconds: float) -> str:
    """A predicted time in its largest unit: `12 s`, `4.0 min`, `3.2 h`, `2.5 days`."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"
