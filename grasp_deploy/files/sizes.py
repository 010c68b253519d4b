"""Sizes in bytes as people write them."""

import math
import re

from grasp_deploy.errors import InputError

BINARY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
DECIMAL_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
SIZE_UNITS = {"B": 1, **BINARY_UNITS, **DECIMAL_UNITS}
BYTES_OF_UNIT = {"": 1, **{unit.lower(): factor for unit, factor in SIZE_UNITS.items()}}


def parse_count(text: str, flag: str) -> int:
    """The number in a text such as `2M`, `500k` or `1024`; InputError for anything else."""
    match = re.fullmatch(r"([0-9.]+)\s*([kmg]?)", text.strip().lower())
    try:
        value = float(match[1]) * COUNT_UNITS[match[2]] if match else math.nan
    except ValueError:
        value = math.nan
    if not 1 <= value < 10**12:
        raise InputError(f"{flag} {text!r} is not a number of tokens: write it like 2M or 500k")
    return int(value)


def parse_bytes(text: str, flag: str) -> int:
    """Bytes in a size such as `9GiB` or `12B`, or a bare number from 1 MiB on; else InputError."""
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    try:
        value = float(match[1]) * BYTES_OF_UNIT[match[2]] if match else math.nan
    except (ValueError, KeyError):
        value = math.nan
    if not (1 if match and match[2] else 2**20) <= value < 2**63:
        units = ", ".join(SIZE_UNITS)
        raise InputError(f"{flag} {text!r} is not a size: write it like 9GiB, with one of {units}")
    return int(value)


def format_bytes(size_bytes: float, decimals: int = 2) -> str:
    """A size in its largest binary unit up to GiB: `9.31 GiB`, `64.00 KiB`, `12 bytes`."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes >= BINARY_UNITS[unit]:
            return f"{size_bytes / BINARY_UNITS[unit]:,.{decimals}f} {unit}"
    return f"{size_bytes:g} bytes"


def size_option(size_bytes: float) -> str:
    """A size as `parse_bytes` reads it, rounded up to hundredths: `1.35GiB`, `12B`."""
    unit = next((u for u in ("GiB", "MiB", "KiB") if size_bytes >= BINARY_UNITS[u]), "B")
    return f"{math.ceil(100 * math.ceil(size_bytes) / SIZE_UNITS[unit]) / 100:.15g}{unit}"
