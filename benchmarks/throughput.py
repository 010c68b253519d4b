"""How much faster is a pruned model at each batch size?

The paper's figure: a prompt of 2,048 tokens, 256 new ones, the batch swept, at keep 1.0, 0.8, 0.6
and 0.5. A folder with weights is compressed by a short schedule (speed depends on shapes alone), as
the method leaves it and with widths in multiples of 32; a config.json gets a random mask of the
same budget and random weights.

    python benchmarks/throughput.py --model ../shared/models/ref-llama-7m \
        --prompt-tokens 256 --new-tokens 64 --batch 1,4,16
    python benchmarks/throughput.py --config benchmarks/configs/llama-2-7b.json \
        --engine transformers --batch 1,2,4,8,16,32,64
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from ending import run, write
from exports import add_options, pruned, synthesized
from option_checks import check_positive
from rich.console import Console

from grasp_deploy.bench.throughput.run import bench_throughput
from grasp_deploy.bench.throughput.settings import ThroughputSettings
from grasp_deploy.bench.throughput.table import throughput_table
from grasp_deploy.config.option import number_list
from grasp_deploy.evaluate.models import BenchModel, bench_models
from grasp_deploy.files.record_output import check_place
from grasp_deploy.report.progress import stage_bars

RATIOS = (0.8, 0.6, 0.5)
ALIGNED = 32


def models_of(options: argparse.Namespace, work: Path) -> list[BenchModel]:
    """The dense model and its pruned ones."""
    if options.config:
        folders = [synthesized(options.config, work, keep) for keep in options.ratios]
        return bench_models([options.config, *map(str, folders)], random_weights=True)
    folders = [
        pruned(options, work, keep, multiple)
        for keep in options.ratios
        for multiple in (1, ALIGNED)
    ]
    return bench_models([str(options.model), *map(str, folders)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--config", help="instead of --model: a config.json, with random weights")
    parser.add_argument("--engine", default="vllm", choices=("vllm", "transformers"))
    parser.add_argument("--batch", default="1,2,4,8,16,32,64")
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    check_place(options.output, "throughput")
    check_positive(options, "repetitions", "prompt_tokens", "new_tokens")
    options.ratios = RATIOS
    if options.smoke:
        options.ratios, options.batch, options.engine = (0.5,), "1,2", "transformers"
        options.prompt_tokens, options.new_tokens, options.repetitions = 16, 4, 3
    settings = ThroughputSettings(
        engine=options.engine,
        batches=number_list(options.batch, "--batch"),
        prompt_tokens=options.prompt_tokens,
        new_tokens=options.new_tokens,
        repetitions=options.repetitions,
    )
    command = ["python", "benchmarks/throughput.py", *sys.argv[1:]]
    with (
        tempfile.TemporaryDirectory(prefix="throughput-") as folder,
        stage_bars(Console(stderr=True)) as on_progress,
    ):
        models = models_of(options, options.work or Path(folder))
        record = bench_throughput(models, settings, command, on_progress)
    Console().print(throughput_table(record))
    write(options.output, record)


if __name__ == "__main__":
    run(main)
