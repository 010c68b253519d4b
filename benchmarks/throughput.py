"""Speed of a pruned model at each batch size.

The paper's figure: a prompt of 2,048 tokens, 256 new ones, the batch swept, at keep 1.0, 0.8, 0.6
and 0.5. A folder with weights is compressed by a short schedule, since speed depends on shapes
alone: as the method leaves it, and with widths in multiples of 32. A config.json gets a random mask
of the same budget and random weights; or with --shapes the layers of the models in a record.

    python -m benchmarks.throughput --model ../shared/models/ref-llama-7m \
        --prompt-tokens 256 --new-tokens 64 --batch 1,4,16
    python -m benchmarks.throughput --config benchmarks/configs/llama-2-7b.json \
        --engine transformers --batch 1,2,4,8,16,32,64
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.common import output
from benchmarks.common.models import add_export_options, pruned, synthesized
from grasp_deploy.bench.throughput import ThroughputRecord, ThroughputSettings, bench_throughput
from grasp_deploy.bench.throughput_show import tables
from grasp_deploy.checkpoint.format.shapes import LayerShape
from grasp_deploy.checkpoint.read.source import resolve_config
from grasp_deploy.checkpoint.read.validate import config_and_shape
from grasp_deploy.cli.console import stdout
from grasp_deploy.compression.synthesize import write_shape
from grasp_deploy.config.option import number_list
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.models import BenchModel, bench_models
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.record import read_record

RATIOS = (0.8, 0.6, 0.5)
ALIGNED = 32


def models_of(options: argparse.Namespace, work: Path) -> list[BenchModel]:
    """The dense model and its pruned ones."""
    if options.shapes:
        folders = [write_layers(options.model, *pair, work) for pair in layers_of(options.shapes)]
        return bench_models([str(options.model), *map(str, folders)], random_weights=True)
    if options.config:
        folders = [synthesized(options.config, work, keep) for keep in options.ratios]
        return bench_models([str(options.config), *map(str, folders)], random_weights=True)
    folders = [
        pruned(options, work, keep, multiple)
        for keep in options.ratios
        for multiple in (1, ALIGNED)
    ]
    return bench_models([str(options.model), *map(str, folders)])


def layers_of(path: Path) -> list[tuple[str, list[LayerShape]]]:
    """Name and layers of each model but the first in a record of a bench."""
    record = typed(read_record(path), ThroughputRecord, path, "name another")
    return [(model.name, model.footprint.layers) for model in record.models[1:]]


def write_layers(model: Path, name: str, layers: Sequence[LayerShape], work: Path) -> Path:
    """A folder with a config.json of a dense model's, but with these layers."""
    stated, dense = config_and_shape(resolve_config(str(model)))
    write_shape(stated, replace(dense, layers=tuple(layers), pruned=True), work / name)
    return work / name


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    add_export_options(parser)
    parser.add_argument(
        "--config", type=Path, help="instead of --model: a config.json, with random weights"
    )
    parser.add_argument(
        "--shapes",
        type=Path,
        metavar="RECORD",
        help="of a bench: take the layers of its pruned models",
    )
    parser.add_argument("--engine", default="vllm", choices=("vllm", "transformers"))
    parser.add_argument("--batch", default="1,2,4,8,16,32,64")
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=5)
    options = output.parsed(parser, arguments, "throughput", "the embedded model, in seconds")
    output.check_positive(options, "repetitions", "prompt_tokens", "new_tokens")
    if sum(map(bool, (options.config, options.shapes, options.work))) > 1:
        raise InputError("--config, --shapes and --work exclude one another: give one of them")
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
    with output.working_folder("throughput") as (folder, on_progress):
        models = models_of(options, options.work or folder)
        command = output.command_of("throughput", arguments)
        record = bench_throughput(models, settings, command, on_progress)
    stdout.print(*tables(record))
    output.write(options.output, record)


if __name__ == "__main__":
    output.run_command(main)
