"""Quality and speed of FFN widths in multiples.

One budget, FFN widths in multiples of 1, 8, 32, 64 and 128: held-out perplexity, distinct layer
shapes, and throughput of all of them side by side.

    python -m benchmarks.aligned_shapes --model ../shared/models/ref-llama-7m \
        --calibration ../shared/data/c4/c4_sample.jsonl --calibration-split 'train[:900]' \
        --heldout ../shared/data/wikitext-2/wiki.test.raw
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from rich.console import Console
from rich.table import Table

from benchmarks.common.models import add_export_options, demo_texts, pruned
from benchmarks.common.output import (
    add_output_options,
    check_place,
    check_positive,
    command_of,
    new_parser,
    run_command,
    working_folder,
    write,
)
from grasp_deploy.bench.throughput import ThroughputSettings, bench_throughput
from grasp_deploy.bench.throughput_show import throughput_table
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.config.option import number_list
from grasp_deploy.data import TextSource, read_blocks
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.evaluate.perplexity import perplexity

MULTIPLES = (1, 8, 32, 64, 128)


def quality(folder: Path, heldout: Path, sequences: int) -> float:
    """Perplexity on sequences of 256 tokens of the held-out text."""
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


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = new_parser(__doc__)
    add_export_options(parser)
    parser.add_argument("--heldout", type=Path, help="text; default: the embedded model's")
    parser.add_argument("--keep", type=float, default=0.6)
    parser.add_argument("--engine", default="vllm", choices=("vllm", "transformers"))
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--repetitions", type=int, default=5)
    add_output_options(parser, "the embedded model, in seconds")
    options = parser.parse_args(arguments)
    check_place(options.output, "throughput")
    check_positive(options, "repetitions")
    options.multiples, options.heldout_sequences, options.lengths = MULTIPLES, 80, (256, 64)
    if options.smoke:
        options.multiples, options.heldout_sequences, options.lengths = (1, 32), 4, (16, 4)
        options.engine, options.batch, options.repetitions = "transformers", "1", 3
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    prompt_tokens, new_tokens = options.lengths
    settings = ThroughputSettings(
        engine=options.engine,
        batches=number_list(options.batch, "--batch"),
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        repetitions=options.repetitions,
    )
    with working_folder("aligned-shapes") as (folder, on_progress):
        work = options.work or folder
        heldout = options.heldout or demo_texts(work)[1]
        checkpoints = [pruned(options, work, options.keep, m) for m in options.multiples]
        models = bench_models([str(options.model), *map(str, checkpoints)])
        command = command_of("aligned_shapes", arguments)
        record = bench_throughput(models, settings, command, on_progress)
        quality_rows = [
            {
                "model": model.name,
                "perplexity": quality(model.path, heldout, options.heldout_sequences),
            }
            for model in models
        ]
    document = {**to_builtins(record), "quality": quality_rows}
    Console().print(quality_table(document), throughput_table(record))
    write(options.output, document)


if __name__ == "__main__":
    run_command(main)
