"""Sizes as people write them."""

import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.files.sizes import format_bytes, parse_bytes, size_option

SIZES = {"9GiB": 9 * 2**30, "64 kib": 65536, "1.5MB": 1_500_000, "2e6": 2_000_000, "1e3B": 1000}


def test_sizes_are_read_and_written() -> None:
    assert {text: parse_bytes(text, "--weights") for text in SIZES} == SIZES
    written = [format_bytes(size) for size in (12, 65536, 1.5 * 2**30)]
    assert written == ["12 bytes", "64.00 KiB", "1.50 GiB"]


@pytest.mark.parametrize("size", [1, 1023, 1024, 2**20 - 1, 2**20 + 1, 1_449_233_778, 10**13 + 7])
def test_an_option_is_read_as_no_less_and_hardly_more(size: int) -> None:
    read = parse_bytes(size_option(size), "--weights")
    assert size <= read <= size + max(0.01 * size, 1)
    assert size_option(1_449_233_778) == "1.35GiB" and size_option(12 * 1024) == "12KiB"


@pytest.mark.parametrize(
    "text", ["", "-1GiB", "0", "2", "9 apples", "nan", "1..2", "1e30", "0.5B", "1e-9KB"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--weights .* is not a size: write it like 9GiB"):
        parse_bytes(text, "--weights")
