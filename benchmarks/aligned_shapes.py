"""What do widths in multiples cost in quality, and what do they win in speed?

One budget, FFN widths in multiples of 1, 8, 32, 64 and 128: held-out perplexity, distinct layer
shapes, and throughput of all of them side by side.

    python benchmarks/aligned_shapes.py --model ../shared/models/ref-llama-7m \
        --calibration ../shared/data/c4/c4_sample.jsonl --calibration-split 'train[:900]' \
        --heldout ../shared/data/wikitext-2/wiki.test.raw
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from ending import run, write
from exports import add_options, demo_texts, pruned
from option_checks import check_positive
from rich.console import Console
from rich.table import Table

from grasp_deploy.bench.throughput.engines import ThroughputSettings
from grasp_deploy.bench.throughput.run import bench_throughput
from grasp_deploy.bench.throughput.table import throughput_table
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.cli.bench.options import int_list
from grasp_deploy.cli.bench.output import check_place
from grasp_deploy.data import TextSource, read_blocks
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.evaluate.perplexity import perplexity
from grasp_deploy.report.progress import stage_bars

MULTIPLES = (1, 8, 32, 64, 128)


def quality(folder: Path, heldout: Path, sequences: int) -> float:
    """Perplexity on blocks of 256 tokens of the held-out text."""
    blocks = read_blocks(load_tokenizer(folder), TextSource(str(heldout)), 256, sequences)
    return perplexity(load(folder, device="cpu"), blocks, batch_size=4).perplexity


def quality_table(record: dict[str, Any]) -> Table:
    table = Table("model", title="Quality and shapes", title_justify="left")
    for head in ("perplexity", "distinct shapes"):
        table.add_column(head, justify="right")
    for row, model in zip(record["quality"], record["models"], strict=True):
        shapes = model["footprint"]["distinct_shapes"]
        table.add_row(row["model"], f"{row['perplexity']:.2f}", str(shapes))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--heldout", type=Path, help="text; default: the embedded model's")
    parser.add_argument("--keep", type=float, default=0.6)
    parser.add_argument("--engine", default="vllm", choices=("vllm", "transformers"))
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    check_place(options.output, "throughput")
    check_positive(options, "repetitions")
    multiples: tuple[int, ...] = MULTIPLES
    sequences, lengths = 80, (256, 64)
    if options.smoke:
        multiples, sequences, lengths = (1, 64), 4, (16, 4)
        options.engine, options.batch, options.repetitions = "transformers", "1", 3
    settings = ThroughputSettings(
        engine=options.engine,
        batches=tuple(int_list(options.batch, "--batch")),
        prompt_tokens=lengths[0],
        new_tokens=lengths[1],
        repetitions=options.repetitions,
    )
    command = ["python", "benchmarks/aligned_shapes.py", *sys.argv[1:]]
    with (
        tempfile.TemporaryDirectory(prefix="aligned-shapes-") as folder,
        stage_bars(Console(stderr=True)) as on_progress,
    ):
        work = options.work or Path(folder)
        heldout = options.heldout or demo_texts(work)[1]
        pruned_folders = [pruned(options, work, options.keep, m) for m in multiples]
        models = bench_models([str(options.model), *map(str, pruned_folders)])
        record = bench_throughput(models, settings, command, on_progress)
        record["quality"] = [
            {"model": model.name, "perplexity": quality(model.path, heldout, sequences)}
            for model in models
        ]
    Console().print(quality_table(record), throughput_table(record))
    write(options.output, record)


if __name__ == "__main__":
    run(main)
