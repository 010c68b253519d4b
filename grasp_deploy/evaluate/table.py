"""A comparison as tables, sentences and figures: loss against size."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from grasp_deploy.checkpoint.card.model_card import MARK
from grasp_deploy.checkpoint.card.quality_verdict import quality_verdict
from grasp_deploy.evaluate.compare import CompareRecord, LossCell
from grasp_deploy.report.section import Drawing
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import plus_minus

HEADS = ("model", "perplexity", "nats", "KL", "agree, %")
Curve = Sequence[tuple[float, float]]


def tables(record: CompareRecord) -> list[Table]:
    """The losses, and what the models say to the same prompts, which no older record has."""
    return [loss_table(record), *([answer_table(record)] if record.said else [])]


def loss_table(record: CompareRecord) -> Table:
    """The first model's loss, and how far the others lie from it."""
    first = record.models[0].name
    notes = [f"nats: a token; of {first} the loss, of others what they lose more"]
    if len(record.models) > 1:
        notes.append(f"KL: divergence from {first}, nats a token")
        notes.append(f"agree: share of tokens with the same most likely one as {first}")
    if any(cell.is_calibrated_on for cell in record.cells):
        notes.append(f"{MARK}: calibrated on this text or a part of it, which flatters the model")
    table = figure_table("", HEADS, [*notes, "±: one standard error"])
    for cells in record.texts:
        of = f"{cells[0].text}: {cells[0].tokens:,} tokens"
        table.add_row(Text(of, "bold"))
        for cell in cells:
            nats = plus_minus(cell.loss_nats_per_token, cell.standard_error, ".3f")
            others = _distances(cell) if cell is not cells[0] else (nats, "", "")
            name = Text(cell.model + MARK * cell.is_calibrated_on)
            table.add_row(name, _shown(cell.perplexity), *others)
        table.add_section()
    return table


def _distances(cell: LossCell) -> tuple[str, str, str]:
    """What a model loses above the first, its divergence and its agreement, where known."""
    lost = plus_minus(cell.excess_nats, cell.excess_error, ".3f", "+")
    if cell.divergence is None or cell.agreement is None:
        return lost, "", ""
    return lost, f"{cell.divergence:z.3f}", f"{100 * cell.agreement:.1f}"


def _shown(perplexity: float) -> str:
    return f"{perplexity:,.3f}" if perplexity < 1000 else f"{perplexity:.4g}"


def answer_table(record: CompareRecord) -> Table:
    """What each model says to the same prompts."""
    table = figure_table("By their most likely tokens", ("model", "answer"))
    table.columns[1].justify = "left"
    for said in record.said:
        table.add_row(Text(said.prompt, "bold"))
        for model, answer in zip(record.models, said.answers, strict=True):
            table.add_row(Text(model.name), Text(answer))
        table.add_section()
    return table


def frontier_of(curve: Curve) -> list[int]:
    """The places of the points that no other beats in both size and loss, the largest first."""
    best: list[int] = []
    for place in sorted(range(len(curve)), key=lambda place: curve[place]):
        if not best or curve[place][1] < curve[best[-1]][1]:
            best.append(place)
    return best[::-1]


def headlines(record: CompareRecord) -> list[dict[str, Any]]:
    """The verdict on each model but the first."""
    dense = record.models[0].name
    lines = [
        {"model": model.name, **quality_verdict([_row(cells, place) for cells in record.texts], [])}
        for place, model in enumerate(record.models[1:], start=1)
    ]
    return [{"benchmark": record.benchmark, "baseline": dense, **line} for line in lines]


def _row(cells: Sequence[LossCell], place: int) -> dict[str, Any]:
    """A text's row of a verdict, from its cells."""
    dense, pruned = cells[0], cells[place]
    count = pruned.data.get("sequences")
    return {
        "name": pruned.text,
        "calibrated_on": pruned.is_calibrated_on or dense.is_calibrated_on,
        "calibrated_on_share": pruned.calibrated_on_share,
        "dense": {"perplexity": dense.perplexity},
        "pruned": {"perplexity": pruned.perplexity},
        "excess_error": pruned.excess_error,
        "tokens": pruned.tokens,
        "sequences": count if isinstance(count, int) else 0,  # unknown: no noise can be told
    }


def figures(record: CompareRecord) -> Iterator[Drawing]:
    """Loss by size, with a line through the best, and how far models drifted.

    Nothing for one model.
    """
    from grasp_deploy.report import figure_style as style

    points, note = record.points, record.text
    if len(points) < 2:
        return
    drifts = [(p.name, p.footprint, p.divergence, None) for p in points if p.divergence is not None]
    if any(point.error for point in points):
        note += f"; bars: one standard error of the difference from {points[0].name}"
    losses = [(point.name, point.footprint, point.loss, point.error) for point in points]
    title = "Loss against size"
    axes, curve, handles = style.against_size(title, note, "loss, nats per token", losses)
    best = [curve[place] for place in frontier_of(curve)]
    if len(best) > 1:
        axes.plot(*zip(*best, strict=True), color=style.MUTED, linewidth=1.4, zorder=1)
        handles.append(style.key_handle("frontier: none is better in both"))
    yield style.finished("loss-by-size", title, axes, handles)
    if len(drifts) == len(points):
        title = f"Divergence from {points[0].name}"
        axes, _, handles = style.against_size(title, record.text, "KL, nats per token", drifts)
        yield style.finished("divergence-by-size", title, axes, handles)
