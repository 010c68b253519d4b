"""Families and bounds on the loss: what one run for several budgets costs, and what a bound leaves.

A family is set beside a run of each budget by itself: processor time, perplexity, nested masks. A
bound on the held-out loss is set beside the loss on text that nothing was chosen by. Draw the
record again with `python -m benchmarks.report`.

    python -m benchmarks.budgets --model ../shared/models/stories260K \
        --calibration ../shared/data/tinystories/train.txt --sequences 256 --sequence-length 256 \
        --evaluate stories=../shared/data/tinystories/heldout.txt --evaluation-blocks 60 \
        --max-loss 0.1,0.3
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, to_builtins
from rich.table import Table

from benchmarks.common import output
from benchmarks.study.bench import Bench, loaded
from benchmarks.study.options import add_study_options, corpora_of, settings_of
from benchmarks.study.record import Perplexities
from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.cli.console import stdout
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.compression.walks import compress_family, compress_within
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import number_list
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.wording import plus_minus


class Member(Struct):
    """A member of the family beside a run of its budget by itself."""

    keep: float
    perplexity: Perplexities
    alone: Perplexities
    alone_seconds: Annotated[float, Meta(gt=0)]  # of processor time
    within_larger: bool  # its units are among those of the member before it


class Bounded(Struct):
    """What a bound came to; `refused` is the line of one that the first step breaks."""

    nats: float
    keep: float | None = None
    excess: float | None = None  # on the held-out sequences of the calibration text
    excess_error: float | None = None
    other_excess: dict[str, float] | None = None  # on the texts of --evaluate
    refused: str | None = None


class Budgets(Struct):
    """The figures of a record of `budgets`."""

    dense_perplexity: Perplexities
    family_seconds: Annotated[float, Meta(ge=0)]  # of processor time
    members: list[Member]
    bounds: list[Bounded]

    def __post_init__(self) -> None:
        of_members = [x for one in self.members for x in (one.perplexity, one.alone)]
        of_bounds = [one.other_excess for one in self.bounds if one.other_excess is not None]
        if any(found.keys() != self.dense_perplexity.keys() for found in of_members + of_bounds):
            raise ValueError(
                "its members and bounds are not all measured on the dense model's texts"
            )


def tables_of(budgets: Budgets) -> list[Table]:
    """The family against separate runs, then the bounds; without what was not measured."""
    tables = []
    texts = list(budgets.dense_perplexity)
    if budgets.members:
        smallest = budgets.members[-1].alone_seconds
        note = (
            f"the family took {budgets.family_seconds:,.0f} s of processor time, "
            f"{budgets.family_seconds / smallest:.2f} x the single run of the smallest budget"
        )
        heads = ("keep", *(f"{text}: family,\nalone, difference" for text in texts), "s alone")
        tables.append(figure_table("Perplexity of a family's members", heads, [note]))
        for member in budgets.members:
            pairs = [(member.perplexity[text], member.alone[text]) for text in texts]
            cells = [f"{one:.3f}  {other:.3f}  {one / other - 1:+.1%}" for one, other in pairs]
            tables[-1].add_row(f"{member.keep:g}", *cells, f"{member.alone_seconds:,.0f}")
    if budgets.bounds:
        heads = ("bound,\nnats", "keep", "held-out excess", *(f"excess on\n{t}" for t in texts))
        note = "±: one standard error; the bound holds if loss and error together are within it"
        tables.append(figure_table("Bounds on the loss", heads, [note]))
        for row in budgets.bounds:
            if row.keep is None or row.excess is None or row.other_excess is None:
                tables[-1].add_row(f"{row.nats:g}", "none", *[""] * (1 + len(texts)))
                continue
            others = [f"{row.other_excess[text]:+.3f}" for text in texts]
            held = plus_minus(row.excess, row.excess_error, ".3f", "+")
            tables[-1].add_row(f"{row.nats:g}", f"{row.keep:g}", held, *others)
    return tables


def family_rows(
    bench: Bench, config: CompressConfig, folder: Path, on_progress: OnProgress
) -> tuple[float, list[Member]]:
    """Processor time of a family, and its members beside runs of their own."""
    family = RunOptions(folder / "family", on_progress=on_progress)
    begun = time.process_time()
    made = [member.output for member in compress_family(config, family)]
    seconds = time.process_time() - begun
    masks = [load_plan(path / PLAN_FILE).mask for path in made]
    nested = [True, *(bool((small <= large).all()) for large, small in pairwise(masks))]
    members = []
    for keep, path, within in zip(config.family, made, nested, strict=True):
        single, apart = replace(config, keep=keep, family=()), folder / f"alone-{keep}"
        begun = time.process_time()
        compress(single, RunOptions(apart, on_progress=on_progress))
        alone_seconds = time.process_time() - begun
        found, alone = (bench.perplexities(loaded(one)) for one in (path, apart))
        members.append(Member(keep, found, alone, alone_seconds, within))
    return seconds, members


def bounded(bench: Bench, config: CompressConfig, folder: Path, on_progress: OnProgress) -> Bounded:
    """What the bound of a config comes to."""
    nats = config.max_loss
    assert nats is not None, "the config has a bound"
    try:
        made = compress_within(config, RunOptions(folder, on_progress=on_progress))
    except InputError as error:
        return Bounded(nats, refused=str(error))
    bound, found = made.plan.provenance["bound"], bench.perplexities(loaded(folder))
    others = {text: math.log(found[text] / dense) for text, dense in bench.dense.items()}
    return Bounded(nats, bound["keep"], bound["excess"], bound["excess_error"], others)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    add_study_options(parser, keep="0.8,0.6,0.5,0.4")
    parser.add_argument("--max-loss", default="", help="bounds in nats, such as 0.02,0.1")
    options = output.parsed(parser, arguments, "budgets")
    family = number_list(options.keep, "--keep", float) if options.keep else ()
    bounds = number_list(options.max_loss, "--max-loss", float) if options.max_loss else ()
    seed, *others = number_list(options.seeds, "--seeds", int)
    if others:
        raise InputError("families are made with one seed: name one in --seeds")
    with output.working_folder("budgets") as (folder, on_progress):
        settings = {**settings_of(options, folder), "seed": seed}
        bench = Bench(options, corpora_of(options, folder))
        record = output.new_record("budgets", arguments, settings)
        result = Budgets(bench.dense, 0.0, [], [])
        if family:
            config = CompressConfig(**settings, keep=family[-1], family=tuple(family))
            result.family_seconds, result.members = family_rows(bench, config, folder, on_progress)
            output.write(options.output, {**record, **to_builtins(result)})
        for number, nats in enumerate(bounds):
            within = CompressConfig(**settings, max_loss=nats)
            result.bounds.append(bounded(bench, within, folder / f"within-{number}", on_progress))
            output.write(options.output, {**record, **to_builtins(result)})
    stdout.print(*tables_of(result))


if __name__ == "__main__":
    output.run_command(main)
