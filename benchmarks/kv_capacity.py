"""How many tokens and sequences does a memory size hold, dense and pruned?

    python benchmarks/kv_capacity.py --config benchmarks/configs/llama-3.1-8b.json --memory 24GiB
    python benchmarks/kv_capacity.py --config ../shared/models/ref-llama-7m --memory 64MiB \
        --context 512
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from ending import run, write
from exports import synthesized
from rich.console import Console

from grasp_deploy.bench.kv.run import bench_kv
from grasp_deploy.bench.kv.settings import KvSettings
from grasp_deploy.bench.tables import kv_table
from grasp_deploy.demo.run import MODEL
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.files.record_output import check_place
from grasp_deploy.files.sizes import parse_bytes
from grasp_deploy.report.progress import stage_bars

LLAMA_2_7B = Path(__file__).parent / "configs" / "llama-2-7b.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=LLAMA_2_7B, help="a dense config.json")
    parser.add_argument("--memory", default="24GiB", help="for weights and KV cache")
    parser.add_argument("--context", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--predict-only", action="store_true", help="start no vLLM")
    parser.add_argument("--smoke", action="store_true", help="the embedded model, no vLLM")
    parser.add_argument("--output", type=Path, help="where to write the JSON record")
    options = parser.parse_args()
    check_place(options.output, "kv")
    ratios: tuple[float, ...] = (0.8, 0.6, 0.5)
    if options.smoke:
        options.config, options.memory, options.context = MODEL, "64MiB", 256
        options.predict_only, ratios = True, (0.5,)
    with (
        tempfile.TemporaryDirectory(prefix="kv-capacity-") as folder,
        stage_bars(Console(stderr=True)) as on_progress,
    ):
        folders = [synthesized(str(options.config), Path(folder), keep) for keep in ratios]
        models = bench_models([str(options.config), *map(str, folders)], random_weights=True)
        settings = KvSettings(
            parse_bytes(options.memory, "--memory"), options.context, options.predict_only
        )
        command = ["python", "benchmarks/kv_capacity.py", *sys.argv[1:]]
        record = bench_kv(models, settings, command, on_progress)
    Console().print(kv_table(record))
    write(options.output, record)


if __name__ == "__main__":
    run(main)
