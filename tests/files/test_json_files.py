"""JSON files: errors in one line with file, key, reason and remedy."""

from pathlib import Path

import msgspec
import pytest

from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import read_json, typed, write_json


class Size(msgspec.Struct):
    width: int


class Record(msgspec.Struct):
    sizes: list[Size]
    named: dict[str, Size] = {}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"name": "größe"})
    assert (tmp_path / "a.json").read_text() == '{\n  "name": "größe"\n}\n'
    assert read_json(tmp_path / "a.json", "") == {"name": "größe"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no file .*a.json: fetch it"),
        (b"{", "a.json cannot be read .*truncated.*: fetch it"),
        (b"\xff", "a.json cannot be read .*utf-8.*: fetch it"),
        (b'{"a": NaN}', "a.json cannot be read .*byte 6.*: fetch it"),
        (b'{"a": "\\ud800"}', "a.json cannot be read .*: fetch it"),
        (b'{"a": ' + b"[" * 9999, "a.json cannot be read .*recursion.*: fetch it"),
        (b"[]", "a.json is not a JSON object: fetch it"),
    ],
)
def test_what_cannot_be_read(content: bytes | None, reason: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_json(tmp_path / "a.json", "fetch it")


def test_types_are_checked_and_key_and_value_are_named() -> None:
    assert typed({"sizes": [{"width": 3}]}, Record, "a.json", "mend it").sizes[0].width == 3
    wrong = {"width": "3"}
    for record, words in (
        ({"sizes": [wrong]}, r"sizes\[0\].width: Expected `int`, got `str`"),
        ({"sizes": [], "named": {"a": wrong}}, r"named\[...\].width: Expected `int`, got `str`"),
    ):
        with pytest.raises(InputError, match=rf"^a.json does not fit \({words}\): mend it$"):
            typed(record, Record, "a.json", "mend it")
