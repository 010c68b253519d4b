"""The figures of sections: their own, and once for the same models what each layer keeps."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator, PercentFormatter

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import readable_disk_errors
from grasp_deploy.files.outputs import check_file_place
from grasp_deploy.report.figure_style import (
    DOTTED,
    finished,
    key_handle,
    line_handle,
    look_of,
    new_axes,
    our_style,
    png,
)
from grasp_deploy.report.section import Drawing, Section
from grasp_deploy.stats.wording import grouped, listed

MARKS = (b'<meta name="generator" content="grasp-deploy', b"tEXtSoftware\0grasp-deploy")
MARK_BYTES = 4096  # within which a page or a figure carries its mark
Layers = Sequence[Mapping[str, float]]
Named = tuple[str, Layers]
UNITS = {
    "experts": ("num_experts", "Kept experts"),
    "ffn": ("intermediate_size", "Kept FFN channels"),
    "kv": ("num_key_value_heads", "Kept KV heads"),
}


def figure_groups(sections: Sequence[Section]) -> Iterator[tuple[str, Section, list[Drawing]]]:
    """A heading, its section and the figures below it: all sections' own, then what layers keep.

    The latter stand under the first section of the same masks.
    """
    with our_style():
        yield from ((one.title, one, found) for one in sections if (found := one.figures()))
        seen: list[Any] = []
        for section in filter(lambda section: section.models, sections):
            name, dense, pruned = _masks(section.models)
            masks = str(dense), {str(layers) for _, layers in pruned.values()}
            if pruned and masks not in seen:
                seen.append(masks)
                units = "experts" if "num_experts" in dense[0] else "ffn", "kv"
                note = f"share of what {name} has"
                drawings = [kept_drawing(unit, note, dense, pruned) for unit in units]
                yield "What each layer keeps", section, drawings


def png_files(sections: Sequence[Section]) -> dict[str, bytes]:
    """PNG content by file name for each figure, named after its section."""
    files: dict[str, bytes] = {}
    for _, section, drawings in figure_groups(sections):
        for drawing in drawings:
            name = re.sub(r"[^\w.-]", "-", f"{section.name}-{drawing.name}")
            while f"{name}.png" in files:  # of "a b" and "a-b"
                name += "-again"
            files[f"{name}.png"] = png(drawing.figure)
    return files


def check_ours(path: Path, option: str) -> None:
    """Raise InputError, naming `option`, if a file cannot be there or is not one of `report`."""
    if not check_file_place(path, option):
        return
    with readable_disk_errors(path), path.open("rb") as file:
        beginning = file.read(MARK_BYTES)
    if not any(mark in beginning for mark in MARKS):
        raise InputError(
            f"{option} {path} exists and was not written by `report`: name another place"
        )


def _masks(models: Sequence[Mapping[str, Any]]) -> tuple[str, Layers, dict[int, Named]]:
    """The first model, and each mask of others of its depth and kind, with all names it has."""
    (name, dense), *others = ((model["name"], model["footprint"]["layers"]) for model in models)
    pruned = [
        (index, other, layers)
        for index, (other, layers) in enumerate(others, start=1)
        if len(layers) == len(dense) and layers != dense
        if ("num_experts" in layers[0]) == ("num_experts" in dense[0])
    ]
    alike = grouped(pruned, lambda one: str(one[2]))
    return name, dense, {of[0][0]: (listed(one[1] for one in of), of[0][2]) for of in alike}


def kept_drawing(
    name: str,
    note: str,
    dense: Layers,
    pruned: Mapping[int, Named],
) -> Drawing:
    """The share of the dense layers' units that each layer keeps, one line for each model.

    A dense layer without such a unit has no point, as one with linear attention has no KV heads.
    `name` is one of UNITS; `pruned` are names and layers of models by the index of their look.
    """
    unit, title = UNITS[name]
    title = f"{title}, layer by layer"
    axes = new_axes(title, f"{note}; legend: of all layers together")
    handles = []
    for index, (model, layers) in pruned.items():
        pairs = enumerate(zip(dense, layers, strict=True))
        shares = {at: after[unit] / before[unit] for at, (before, after) in pairs if before[unit]}
        axes.plot([*shares], [*shares.values()], linewidth=1.3, markersize=3.5, **look_of(index))
        share = sum(layer[unit] for layer in layers) / sum(layer[unit] for layer in dense)
        axes.axhline(share, color=look_of(index)["color"], linewidth=1, linestyle=DOTTED)
        handles.append(line_handle(index, f"{model}: {share:.1%}"))
    axes.set_ylim(0, max(1.05, axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer")
    axes.set_ylabel("kept share")
    key = key_handle("all layers together", DOTTED)
    return finished(f"kept-{name}", title, axes, [*handles, key])
