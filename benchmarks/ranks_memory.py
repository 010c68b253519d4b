"""Peak memory of each process of a compression under torchrun, beside what `--dry-run` predicts.

    python -m benchmarks.ranks_memory --output benchmarks/results/ranks_memory.json

A random Llama of 1.2 billion parameters in bfloat16, of the embedded model's vocabulary, is
compressed on so many CPU processes of one thread each. Memory is the peak resident set (VmHWM),
with pages of mapped files. The embedded model, compressed in the same way, shows what interpreter
and libraries take: the prediction adds `PROCESS_BYTES` for them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.models import MODEL, demo_texts
from benchmarks.common.output import (
    add_output_options,
    check_place,
    check_positive,
    command_of,
    new_parser,
    print_table,
    run_command,
    working_folder,
    write,
)
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, load_plan
from grasp_deploy.checkpoint.read.loading import random_model
from grasp_deploy.compression.memory import Way
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError
from grasp_deploy.files.record import new_record

SIZES = {
    "vocab_size": 131072,
    "hidden_size": 2048,
    "intermediate_size": 1536,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 96,
    "tie_word_embeddings": False,
}
OPTIONS: dict[str, Any] = {
    "keep": 0.6,
    "method": "progressive",
    "rounds": 1,
    "sequences": 4,
    "sequence_length": 256,
    "dtype": "bfloat16",
    "device": "cpu",
}
POLL_SECONDS = 0.05
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}  # tensors leave with their memory


def write_model(folder: Path, sizes: dict[str, Any]) -> Path:
    """A random bfloat16 Llama with the tokenizer of the embedded model; returns its folder."""
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((MODEL / "config.json").read_text("utf-8")) | sizes
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    random_model(folder, "cpu").save_pretrained(folder)
    return folder


def config_of(model: Path, text: Path) -> CompressConfig:
    """The compression that is measured."""
    return CompressConfig(model=str(model), calibration=(str(text), "self=0"), **OPTIONS)


def compress(
    config: CompressConfig, processes: int, output: Path, threads: int = 1
) -> dict[str, Any]:
    """Compress under torchrun; the peak bytes of each process, and the seconds of stages."""
    options = output.with_suffix(".json")
    options.write_text(config.to_json(), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)),
        *("-m", "grasp_deploy", "compress", "--config", str(options), "--output", str(output)),
    ]
    began = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **MALLOC}
    torchrun = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    peaks: dict[int, int] = {}
    while torchrun.poll() is None:
        for process in _children(torchrun.pid):
            peaks[process] = max(peaks.get(process, 0), _peak_bytes(process))
        time.sleep(POLL_SECONDS)
    if torchrun.returncode:
        raise InputError(
            f"torchrun ended with exit code {torchrun.returncode}: see its error above"
        )
    stages = dict(load_plan(output / PLAN_FILE).provenance["seconds"])
    stages["rounds"] = stages.pop("start", 0.0)
    return {
        "peak_bytes": [peaks[process] for process in sorted(peaks)],  # the lead was started first
        "stage_seconds": stages,
        "seconds": time.perf_counter() - began,
    }


def _children(process: int) -> list[int]:
    """The ids of the processes that a process has started."""
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8")
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _peak_bytes(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    _, _, peak = status.partition("VmHWM:")
    return 1024 * int(peak.split()[0]) if peak else 0  # none of a process that has just ended


def predict(config: CompressConfig, processes: int) -> dict[str, Any]:
    """What `--dry-run` predicts of the same run."""
    one = Way.of(config, model_shape(read_config(Path(config.model))), on_gpu=False)
    way = replace(one, processes=processes)
    return {"machine_bytes": way.machine_bytes, "stages": way.stages}


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The figures of the record."""
    text = demo_texts(work)[0]
    processes = options.processes
    libraries = compress(config_of(MODEL, text), processes, work / "embedded")
    model = MODEL if options.smoke else write_model(work / "model", SIZES)
    config = config_of(model, text)
    predicted = predict(config, processes)
    measured = compress(config, processes, work / "smaller")
    shape = model_shape(read_config(model))
    return {
        "parameters": shape.parameters,
        "libraries_bytes": libraries["peak_bytes"],
        "predicted": predicted,
        "measured": measured,
    }


def print_record(figures: dict[str, Any]) -> None:
    """Predicted beside measured."""
    said, peaks = figures["predicted"]["machine_bytes"], figures["measured"]["peak_bytes"]
    rows = [
        ("parameters", f"{figures['parameters']:,}"),
        ("all processes, predicted", f"{said / 2**30:.2f} GiB"),
        ("measured", f"{sum(peaks) / 2**30:.2f} GiB"),
        *((f"process {number}", f"{peak / 2**30:.2f} GiB") for number, peak in enumerate(peaks)),
    ]
    print_table(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--processes", type=int, default=2)
    add_output_options(parser, "the embedded model alone")
    options = parser.parse_args(arguments)
    check_place(options.output, "ranks_memory")
    check_positive(options, "processes")
    settings = {"processes": options.processes, "sizes": SIZES, **OPTIONS, **MALLOC}
    with working_folder("ranks_memory") as (folder, _):
        figures = measure(options, folder)
    print_record(figures)
    command = command_of("ranks_memory", arguments)
    write(options.output, new_record("ranks_memory", command, settings, **figures))


if __name__ == "__main__":
    run_command(main)
