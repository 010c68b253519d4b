"""Sizes in bytes as people write them."""

from __future__ import annotations

import math

from grasp_deploy.errors import InputError

BYTE_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40} | {
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}


def parse_bytes(text: str, flag: str) -> int:
    """Bytes in a size such as `9GiB`, `64KiB`, `500MB` or `1024`; InputError if it is none."""
    number = text.strip().rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    unit = text.strip()[len(number) :]
    scale = {name.lower(): factor for name, factor in BYTE_UNITS.items()}.get(unit.lower())
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if scale is None or not 0 < value * scale < 2**63:
        raise InputError(f"{flag} {text!r} is no size: write it like 9GiB, 64KiB or 500MB")
    return int(value * scale)
