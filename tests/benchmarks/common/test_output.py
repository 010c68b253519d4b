"""How studies end: with a record, or in one line."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from benchmarks.common import output
from grasp_deploy.errors import InputError


def test_a_full_disk_ends_in_a_line_that_names_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(output, "write_record", full)
    output.write(None, {})
    with pytest.raises(InputError, match=f"cannot write {tmp_path / 'a.json'}: the disk is full"):
        output.write(tmp_path / "a.json", {})
