"""Tokens and sequences that a memory size holds, dense and pruned.

    python -m benchmarks.kv_capacity --config benchmarks/configs/llama-3.1-8b.json --memory 24GiB
    python -m benchmarks.kv_capacity --config ../shared/models/ref-llama-7m --memory 64MiB \
        --context 512
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import output
from benchmarks.common.models import MODEL, synthesized
from grasp_deploy.bench.kv import KvSettings, bench_kv
from grasp_deploy.bench.kv_show import tables
from grasp_deploy.cli.console import stdout
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.files.sizes import parse_bytes

RATIOS = (0.8, 0.6, 0.5)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    config = output.CONFIGS / "llama-2-7b.json"
    parser.add_argument("--config", type=Path, default=config, help="a dense config.json")
    parser.add_argument("--memory", default="24GiB", help="for weights and KV cache")
    parser.add_argument("--context", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--predict-only", action="store_true", help="start no vLLM")
    options = output.parsed(parser, arguments, "kv", "the embedded model, no vLLM")
    ratios: tuple[float, ...] = RATIOS
    if options.smoke:
        options.config, options.memory, options.context = MODEL, "64MiB", 256
        options.predict_only, ratios = True, (0.5,)
    with output.working_folder("kv-capacity") as (folder, on_progress):
        folders = [synthesized(options.config, folder, keep) for keep in ratios]
        models = bench_models([str(options.config), *map(str, folders)], random_weights=True)
        settings = KvSettings(
            parse_bytes(options.memory, "--memory"), options.context, options.predict_only
        )
        record = bench_kv(
            models, settings, output.command_of("kv_capacity", arguments), on_progress
        )
    stdout.print(*tables(record))
    output.write(options.output, record)


if __name__ == "__main__":
    output.run_command(main)
