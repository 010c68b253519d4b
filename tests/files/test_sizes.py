"""Sizes as people write them."""

from __future__ import annotations

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("9GiB", 9 * 2**30), ("64 kib", 65536), ("1.5MB", 1_500_000), ("1024", 1024), ("1e3B", 1000)],
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert parse_bytes(text, "--weights") == size_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "0", "9 apples", "nan", "inf", "1..2", "1e30"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--weights .* is not a size: write it like 9GiB"):
        parse_bytes(text, "--weights")


def test_sizes_are_written() -> None:
    sizes = [format_bytes(size) for size in (12, 65536, 1.5 * 2**30)]
    assert sizes == ["12 bytes", "64.00 KiB", "1.50 GiB"]
    assert format_bytes(3 * 2**40, 1) == "3,072.0 GiB"
