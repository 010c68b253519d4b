"""The memory of a machine and of a container in it."""

from pathlib import Path

import pytest

from grasp_deploy.files import memory

LIMIT, HELD = 5 * 2**30, 2**30


@pytest.mark.parametrize(
    ("limit_file", "key"), [("memory.max", "anon"), ("memory/memory.limit_in_bytes", "total_rss")]
)
def test_a_container_has_no_more_than_its_limit(
    limit_file: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, limit = tmp_path / "meminfo", tmp_path / limit_file
    machine.write_text("MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\nHugePages_Total: 0\n")
    monkeypatch.setattr(memory, "MACHINE", machine)
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    whole = (8 * 2**30, 6 * 2**30)
    assert (memory.memory_bytes(), memory.memory_bytes(free=True)) == whole
    limit.parent.mkdir(exist_ok=True)
    limit.with_name("memory.stat").write_text(f"file {HELD}\n{key} {HELD}\n")
    limit.write_text("max\n" if key == "anon" else "9223372036854771712\n")
    assert (memory.memory_bytes(), memory.memory_bytes(free=True)) == whole
    limit.write_text(f"{LIMIT}\n")
    assert (memory.memory_bytes(), memory.memory_bytes(free=True)) == (LIMIT, LIMIT - HELD)
