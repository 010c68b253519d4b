"""Peak memory and time of the streaming export, for a random model of a billion parameters.

    python -m benchmarks.export_memory --output benchmarks/results/export_memory.json

Writes a random bf16 Llama in ten shards and a plan with a random mask to a temporary folder, and
exports it in fresh processes. Memory is the process's peak resident set (VmHWM: mapped weight files
count too) above what it was once torch and the export were imported. Time is that of `export`,
imports left out, beside `cp -r` of the input and of the output, in turns. The export hashes its
input, hashes its output and flushes it to the disk; `cp` does none of this, so `cp -r` followed by
`sync` stands beside it too. An untimed copy goes before everything that is timed: on a virtual
machine, memory that was not in use for seconds takes longer to fill than everything else here.
"""

from __future__ import annotations

import bisect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.models import MODEL
from benchmarks.common.output import (
    CONFIGS,
    add_output_options,
    check_place,
    check_positive,
    command_of,
    new_parser,
    print_table,
    run_command,
    write,
)
from benchmarks.common.plans import plan_of, random_mask, random_scales
from benchmarks.common.spread import spread
from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.write.shards import plan_shards, write_shards
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.record import new_record

LLAMA_1B = CONFIGS / "llama-1b.json"
KEEP = 0.6
EXPORT = """
import json, shutil, subprocess, sys, time
from pathlib import Path
import torch
from grasp_deploy.checkpoint.write.export import export
from grasp_deploy.checkpoint.plan import load_plan

def peak_bytes():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

plan, base, output, shard_bytes = sys.argv[1:]
before = peak_bytes()
warm_up = output + "-warm-up"
subprocess.run(["cp", "-r", base, warm_up], check=True)
shutil.rmtree(warm_up)
start = time.perf_counter()
export(load_plan(Path(plan)), Path(base), Path(output), shard_bytes=int(shard_bytes))
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "imported_bytes": before, "peak_bytes": peak_bytes()}))
"""


def write_model(folder: Path, config: dict[str, Any], shards: int) -> int:
    """A random model in so many shards, written as a stream; returns the bytes of a shard."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shape = replace(model_shape(config), dtype="bfloat16")
    shard_bytes = bisect.bisect_left(
        range(shape.weight_bytes), True, key=lambda size: len(plan_shards(shape, size)) <= shards
    )
    write_shards(folder, shape, _random_tensors(shape), shard_bytes)
    return shard_bytes


def _random_tensors(shape: ModelShape) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for name, size in shape.tensor_shapes().items():
        yield name, torch.randn(size, dtype=torch.bfloat16, generator=generator)


def export_once(work: Path, shard_bytes: int) -> dict[str, Any]:
    """Export in a fresh process, over what the last one wrote."""
    shutil.rmtree(work / "output", ignore_errors=True)
    os.sync()
    paths = [str(work / name) for name in ("plan.grasp", "base", "output")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", EXPORT, *paths, str(shard_bytes)]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def copy_seconds(folder: Path) -> tuple[float, float]:
    """Seconds of `cp -r`, and of `cp -r` with a `sync` of the copy after it."""
    copy = folder.with_name("copy")
    os.sync()
    subprocess.run(["cp", "-r", folder, copy], check=True)
    shutil.rmtree(copy)
    start = time.perf_counter()
    subprocess.run(["cp", "-r", folder, copy], check=True)
    copied = time.perf_counter()
    subprocess.run(["sync", *copy.iterdir()], check=True)
    flushed = time.perf_counter()
    shutil.rmtree(copy)
    return copied - start, flushed - start


def measure(
    work: Path, config: dict[str, Any], shards: int, repeats: int, command: list[str]
) -> dict[str, Any]:
    """Run the benchmark in an empty folder; returns its record."""
    base, output = work / "base", work / "output"
    shard_bytes = write_model(base, config, shards)
    shape = model_shape(read_config(base))
    budget = budget_for(CompressConfig(model=base.name, keep=KEEP), shape, torch.device("cpu"))
    mask = random_mask(budget, seed=0)
    plan_of(base, budget, mask, random_scales(mask, seed=0)).save(work / "plan.grasp")
    exports, copies = [], {"input": [], "output": []}  # type: ignore[var-annotated]
    for _ in range(repeats):
        exports.append(export_once(work, shard_bytes))
        copies["input"].append(copy_seconds(base))
        copies["output"].append(copy_seconds(output))
    seconds = spread([export["seconds"] for export in exports])
    of_copies = {
        f"copy_{name}{kind}_seconds": spread([pair[index] for pair in pairs])
        for name, pairs in copies.items()
        for index, kind in enumerate(("", "_and_sync"))
    }
    settings = {
        "parameters": shape.parameters,
        "keep": KEEP,
        "input_shards": len(list(base.glob("*.safetensors"))),
        "input_bytes": folder_bytes(base),
        "output_bytes": folder_bytes(output),
        "largest_tensor_bytes": shape.vocab_size * shape.hidden_size * 2,
        "repeats": repeats,
    }
    figures = {
        "imported_memory_bytes": max(export["imported_bytes"] for export in exports),
        "peak_memory_bytes": max(export["peak_bytes"] for export in exports),
        "peak_above_imports_bytes": max(
            export["peak_bytes"] - export["imported_bytes"] for export in exports
        ),
        "export_seconds": seconds,
        **of_copies,
    }
    figures |= {
        f"times_{name.removesuffix('_seconds')}": seconds["median"] / taken["median"]
        for name, taken in of_copies.items()
    }
    return new_record("export_memory", command, settings, **figures)


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def print_record(record: dict[str, Any]) -> None:
    settings = record["settings"]
    sizes = f"{settings['input_bytes'] / 2**30:.2f} -> {settings['output_bytes'] / 2**30:.2f} GiB"
    rows = [
        (f"{settings['parameters']:,} parameters", sizes),
        ("largest tensor", f"{settings['largest_tensor_bytes'] / 2**20:.0f} MiB"),
        ("peak memory above imports", f"{record['peak_above_imports_bytes'] / 2**20:.0f} MiB"),
        ("export", f"{record['export_seconds']['median']:.2f} s"),
    ]
    for name in ("input", "output"):
        for kind, label in (("", "cp -r"), ("_and_sync", "cp -r; sync")):
            key = f"copy_{name}{kind}"
            times = f"export / it: {record[f'times_{key}']:.2f}"
            seconds = record[f"{key}_seconds"]["median"]
            rows.append((f"{label} of the {name}", f"{seconds:.2f} s, {times}"))
    print_table(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--config", type=Path, default=LLAMA_1B, help="the model's config.json")
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    add_output_options(parser, "a tiny model, once")
    options = parser.parse_args(arguments)
    check_place(options.output, "export_memory")
    check_positive(options, "shards", "repeats")
    if options.smoke:
        options.config, options.repeats = MODEL / "config.json", 1
    config = read_config(options.config)
    torch.set_num_threads(1)
    command = command_of("export_memory", arguments)
    with tempfile.TemporaryDirectory(prefix="export-memory-") as work:
        record = measure(Path(work), config, options.shards, options.repeats, command)
    print_record(record)
    write(options.output, record)


if __name__ == "__main__":
    run_command(main)
