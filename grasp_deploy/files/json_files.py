"""JSON files: parsed, checked against a type, and written in one move."""

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import read_text, write_text

T = TypeVar("T")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Parse a file of one JSON object; InputError with the path, the reason and `remedy`."""
    try:
        value = msgspec.json.decode(read_text(path))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: {remedy}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path} cannot be read ({reason}): {remedy}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} is not a JSON object: {remedy}")
    return value


def typed(value: Any, kind: type[T], source: str | Path, remedy: str) -> T:
    """Convert parsed JSON to a type; InputError with source, key, reason and `remedy`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `")
        key = place.removesuffix("`").removeprefix("key` in `").removeprefix("$").removeprefix(".")
        where = f"{key}: " if key else ""
        raise InputError(f"{source} does not fit ({where}{reason}): {remedy}") from None


def as_json(value: Any) -> str:
    """JSON text in the one layout that files have."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one move."""
    write_text(path, as_json(value))
