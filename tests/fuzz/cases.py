"""The classes of damage: what each changes in the world, and which commands then meet it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from typer.main import get_command

from grasp_deploy.cli.app import app
from grasp_deploy.files.disk import sha256
from tests.fuzz.mutations import RED, WORDS, change_bytes, change_file, change_kind, copy_beside
from tests.fuzz.world import COMMANDS, RECORDS, TEXTS, command_line

Damage = Callable[[Path, Random], None]
DENSE, PRUNED = WORDS["dense"], WORDS["pruned"]
READS_PLAN = ("verify", "verify-alone", "card", "heal", "export", "adapter")
READS_TEXT = ("compress", "compare", "card", "heal")
ODD_WORDS = (*WORDS["values"], RED, "9" * 400, "")


@dataclass(frozen=True)
class Case:
    """A class of damage: files by patterns, how one of them is changed, and commands."""

    files: Sequence[str]
    damage: Damage
    commands: Sequence[str]


def _text(path: Path, draw: Random) -> None:
    path.write_bytes(change_bytes(path.read_bytes(), draw))


def _columns(path: Path, draw: Random) -> None:
    """Another name for the column of texts, beside a label, and another shape of some texts."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    name = draw.choice(("content", "conversations", "turns", "prompt", "story", RED))
    chosen = draw.choices(range(8), k=2)
    for row in rows:
        text = row.popitem()[1] if "messages" in row else row.pop("text")
        parts = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        shapes: list[Any] = [text, [text], [text, text], [], None, parts]
        shapes += [[[text]], {"text": text}]
        row |= {"label": "good", name: shapes[draw.choice(chosen)]}
    path.write_text("\n".join(map(json.dumps, rows)))


CASES = {
    "config": Case(("model/config.json",), change_file, DENSE),
    "pruned config": Case(("pruned/config.json",), change_file, PRUNED),
    "header": Case(("model/*.safetensors",), change_file, DENSE),
    "pruned header": Case(("pruned/model*.safetensors",), change_file, PRUNED),
    "index": Case(("*/model.safetensors.index.json",), change_file, (*DENSE, *PRUNED)),
    "plan": Case(("pruned/plan.grasp",), change_file, READS_PLAN),
    "manifest": Case(("pruned/manifest.json",), change_file, PRUNED),
    "record": Case(RECORDS, change_file, ("report", "page", "report", "card-record", "report")),
    "state": Case(("half.partial/*",), change_file, ("resume",)),
    "text": Case(("text.txt", "rows.*", "chats.jsonl"), _text, READS_TEXT),
    "columns": Case(("rows.jsonl", "chats.jsonl"), _columns, READS_TEXT),
    "tokenizer": Case(
        ("*/tokenizer*", "*/chat_template.jinja"), change_file, (*READS_TEXT, "verify", "gguf")
    ),
    "beside": Case(("pruned/[!mpc]*", "pruned/*.py"), change_file, PRUNED),
    "dense beside": Case(("model/[!m]*",), change_file, DENSE),
    "stray": Case(("model/*",), copy_beside, DENSE),
    "pruned stray": Case(("pruned/*",), copy_beside, PRUNED),
    "kinds": Case(("model/*",), change_kind, DENSE),
    "pruned kinds": Case(("pruned/*",), change_kind, PRUNED),
    "text kinds": Case(TEXTS, change_kind, READS_TEXT),
    "record kinds": Case((*RECORDS, "items.jsonl"), change_kind, ("report", "tasks", "kv")),
    "state kinds": Case(("half.partial/*",), change_kind, ("resume",)),
    "options": Case((), change_file, tuple(COMMANDS)),
    "adapter": Case(("adapter/adapter_*",), change_file, ("adapter",)),
    "adapter kinds": Case(("adapter/adapter_*",), change_kind, ("adapter",)),
    "items": Case(("items.jsonl",), change_file, ("tasks",)),
}


def damaged_world(name: str, world: Path, draw: Random) -> list[str]:
    """Damage one file of the world; returns the arguments of the command to run."""
    case = CASES[name]
    command = draw.choice(case.commands)
    files = sorted({path for pattern in case.files for path in world.glob(pattern)})
    files = [path for path in files if not path.is_dir()]
    path = world
    if files:
        path = draw.choice(files)
        case.damage(path, draw)
        if path.parent.name == "pruned" and name != "manifest" and draw.random() < 0.7:
            _vouch_again(path)
    arguments = command_line(command, draw, path.name)
    return arguments + (_odd_options(arguments, draw) if name == "options" else [])


def _vouch_again(path: Path) -> None:
    """What an attacker does: state the damaged file's own hash in the manifest."""
    manifest = path.with_name("manifest.json")
    if path.is_file() and path.resolve().is_relative_to(path.parent.resolve()) and path != manifest:
        stated = json.loads(manifest.read_text())
        stated["sha256"][path.name] = sha256(path)
        manifest.write_text(json.dumps(stated))


def _odd_options(words: Sequence[str], draw: Random) -> list[str]:
    """Some options of the command, with odd values."""
    command: Any = get_command(app)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    more: list[str] = []
    for option in draw.choices(options, k=draw.choice((1, 1, 2, 3)) * bool(options)):
        more += [option.opts[0]] if option.is_flag else [option.opts[0], draw.choice(ODD_WORDS)]
    return more
