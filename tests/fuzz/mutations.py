"""Damage to files: changes of JSON values, bytes, tensors, archives of them, and kinds of files."""

import json
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

LENGTH_BYTES = 8  # of the number in front of a safetensors header
RED = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\u202e[bold]\x9b31m\x7f"
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf")),
    *(2**31, 2**63, 2**64, -(2**63), 10**30, 1_000_000_000, "", "x", "0", "1e9", "auto", "./none"),
    *("\0", RED, "[/red]", "[link=x]", "\ud800", "\n\nTraceback", "x" * 5000, "é中", "../../x"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": [1, RED]}}, [1, "x", None], [0] * 9),
)
WORDS = {  # by what they are for
    line.partition(": ")[0]: line.split()[1:]
    for line in Path(__file__).with_name("words.txt").read_text().splitlines()
}
ODD_BYTES = (
    *(b"", b"\xff\xfe\0", b"[" * 100_000, b"9" * 5000, b"\r\r", b'"', b"{}", b"\xed\xa0\x80"),
    *(b"\xc0\x7f", "\u2028\u0301".encode(), b"<|im_end|>", b"NaN", RED.encode()),
)


def change_json(value: Any, draw: Random) -> Any:
    """The value with one to three of its parts replaced, removed, added or doubled."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        value = _change_once(value, draw)
    return value


def _change_once(value: Any, draw: Random) -> Any:
    places = list(_places(value))
    if draw.random() < 0.5:  # few keys at the top, and each of them is read
        places = [place for place in places if place[0] is value]
    odd = RED if draw.random() < 0.1 else deepcopy(draw.choice(ODD_VALUES))
    if not places or draw.random() < 0.01:
        return odd
    holder, key = draw.choice(places)
    way = draw.random()
    if way < 0.1:
        del holder[key]
    elif way < 0.3 and isinstance(holder, dict):
        holder[draw.choice((*WORDS["keys"], *holder, RED, ""))] = draw.choice((odd, holder[key]))
    elif way < 0.6:
        holder[key] = _changed_alike(holder[key], draw)
    else:
        holder[key] = odd
    return value


def _changed_alike(value: Any, draw: Random) -> Any:
    """Another value of the same type, or the value in lists."""
    if isinstance(value, int | float) and draw.random() < 0.8:
        return draw.choice((0, *(value * factor for factor in (-1, 2, 1 / 3, 1e300))))
    if isinstance(value, str) and draw.random() < 0.8:
        return value + draw.choice((RED, "x", "/", "[red]"))
    for _ in range(draw.choice((0, 1, 5, 250))):  # thrice at most: json.dumps has a limit
        value = [value]
    return [value] * draw.choice((1, 2, 100))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each part of a JSON value as its holder and its key there."""
    if not isinstance(value, dict | list):
        return
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        yield from _places(value[key])


def change_bytes(content: bytes, draw: Random) -> bytes:
    """Content with a run of bytes replaced, removed, inserted or doubled."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        start = draw.randrange(len(content) + 1)
        end = min(len(content), start + draw.choice((0, 1, 1, 4, 100, 10**6)))
        ways = (draw.choice(ODD_BYTES), draw.randbytes(end - start or 1), content[start:end] * 2)
        new = draw.choice(ways)
        content = content[:start] + new + content[end:]
    return content


def change_file(path: Path, draw: Random) -> None:
    """Damage a file in the manner of its kind: values of JSON, header or tensors, else bytes."""
    if path.suffix == ".json" and draw.random() < 0.8:
        changed = change_json(json.loads(path.read_text()), draw)
        path.write_text(json.dumps(changed))
    elif path.suffix in (".safetensors", ".grasp") and draw.random() < 0.9:
        path.write_bytes(change_tensors(path, draw))
    else:
        path.write_bytes(change_bytes(path.read_bytes(), draw))


def change_tensors(path: Path, draw: Random) -> bytes:
    """A safetensors file with another record, another header, or other numbers."""
    content = path.read_bytes()
    end = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    header, body = json.loads(content[LENGTH_BYTES:end]), content[end:]
    metadata = header.get("__metadata__", {})
    if "grasp_deploy" in metadata and draw.random() < 0.7:
        record = change_json(json.loads(metadata["grasp_deploy"]), draw)
        metadata["grasp_deploy"] = json.dumps(record)
    elif draw.random() < 0.5:
        header = change_json(header, draw)
    else:
        odd = draw.choice((b"\xff" * 4, b"\0" * 40, b"\0\0\x80\x7f", draw.randbytes(8)))
        start = draw.randrange(max(1, len(body) // 4)) * 4
        body = body[:start] + odd + body[start + len(odd) :]
    text = json.dumps(header).encode()
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + body


def change_kind(path: Path, draw: Random) -> None:
    """Put something else where a file is: a pipe, a device, a folder, a loop, nothing."""
    if path.exists():
        path.unlink()
    makers: tuple[Callable[[], object], ...] = (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(draw.choice(("/dev/null", "/dev/stdin", "/proc/self/mem"))),
        lambda: path.symlink_to(path.name),
        lambda: path.mkdir(),
        lambda: path.touch(),
        lambda: None,
    )
    draw.choice(makers)()


def copy_beside(path: Path, draw: Random) -> None:
    """Put a copy under a name that some reader of a folder knows."""
    names = ("params.json", "adapter_config.json", "consolidated.safetensors", "x.safetensors")
    more = ("model.safetensors.index.json", "preprocessor_config.json", "x.gguf", "quality.json")
    path.with_name(draw.choice((*names, *more))).write_bytes(path.read_bytes())  # or itself
