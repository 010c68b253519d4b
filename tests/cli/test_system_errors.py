"""What the operating system refuses ends in one line, like any bad input."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.command import SHORT, assert_refused, command_line, environment, grasp_deploy

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("options", [("--json",), ()])
def test_a_full_disk_under_stdout(pruned: Path, options: tuple[str, ...]) -> None:
    """In a process of its own: what stdout still holds is written at its very end."""
    command = command_line("inspect", pruned, *options)
    with FULL.open("w") as full:
        ended = subprocess.run(
            command, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stderr.startswith("error: No space left on device")


def test_links_that_lead_to_themselves(tiny_folder: Path, work: Path) -> None:
    loop = work / "loop"
    loop.symlink_to(loop)
    compress = ("compress", tiny_folder, "-o", "out", "--keep", "0.6", *SHORT)
    for command in (
        ("inspect", loop),
        ("verify", loop),
        ("report", loop),
        ("compress", loop, "-o", "out", "--keep", "0.6", "--calibration", "text.txt", *SHORT),
        (*compress, "--calibration", loop),
        (*compress, "--calibration", "text.txt", "-o", loop / "out"),
    ):
        assert_refused(grasp_deploy(*command), str(loop))
    assert {path.name for path in work.iterdir()} == {"loop", "text.txt"}
