"""The memory of this machine, or of the container in it."""

from contextlib import suppress
from pathlib import Path

MACHINE, CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
# Limits of cgroups v2 and v1, each with the key of what programs hold in memory.stat beside it.
LIMITS = {"memory.max": "anon", "memory/memory.limit_in_bytes": "total_rss"}


def memory_bytes(*, free: bool = False) -> int:
    """Bytes that programs can take in all; if `free`, a new one, without swapping."""
    found = 1024 * _figures(MACHINE)["MemAvailable:" if free else "MemTotal:"]
    for name, held in LIMITS.items():
        path = CONTAINER / name
        with suppress(OSError, ValueError):  # no such file; or "max", no limit
            limit = int(path.read_text(encoding="ascii"))
            taken = _figures(path.with_name("memory.stat")).get(held, 0) if free else 0
            found = min(found, limit - taken)
    return found


def _figures(path: Path) -> dict[str, int]:
    """The number behind each name in a file of the kernel's."""
    rows = map(str.split, path.read_text(encoding="ascii").splitlines())
    return {name: int(number) for name, number, *_ in rows}
