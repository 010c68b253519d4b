"""Options that commands share, and options made from the fields of a settings dataclass."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from grasp_deploy.config.option import check_fields, flag, number_list, option_fields, value_type

Command = Callable[..., Any]
MODEL_HELP = "Hub id or folder of a model, dense or pruned."
SHARD_SIZE_HELP = "Largest weight file, such as 4GB."
METAVARS: dict[Any, str] = {int: "<int>", float: "<float>"}

running_option = partial(typer.Option, rich_help_panel="Running")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")]
RecordOutput = Annotated[
    Path | None, typer.Option("--output", "-o", help="JSON file to write the record to.")
]
Overwrite = Annotated[bool, running_option("--overwrite", help="Replace the output.")]
ShardSize = Annotated[str, running_option("--shard-size", help=SHARD_SIZE_HELP)]
HiddenShardSize = Annotated[  # `--help-all` shows it
    str, running_option("--shard-size", help=SHARD_SIZE_HELP, hidden=True)
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
VllmFlags = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- VLLM FLAGS]", help="Flags for `vllm serve`, after --, such as -- --port 8001."
    ),
]
Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help="Hub ids or folders, dense or pruned; the others are compared with the first.",
    ),
]


def takes_settings(settings_type: type) -> Callable[[Command], Command]:
    """Give a command with a parameter `settings` an option for each option of the dataclass.

    Values that break a type or a bound end in one InputError that names them all.
    """

    def build(given: dict[str, Any]) -> Any:
        settings = settings_type(**read_values(settings_type, given))
        check_fields(settings)
        return settings

    parameters = field_parameters(settings_type)
    return lambda command: with_parameters(command, "settings", parameters, build)


def with_parameters(
    command: Command,
    replaced: str,
    parameters: Iterable[inspect.Parameter],
    build: Callable[[dict[str, Any]], Any],
) -> Command:
    """The command with the parameter `replaced` made by `build` from the values of others.

    `build` gets the values by name, without those that were not given.
    """
    new = list(parameters)

    @wraps(command)
    def with_options(**arguments: Any) -> Any:
        values = {p.name: arguments.pop(p.name) for p in new}
        given = {name: value for name, value in values.items() if value not in (None, [])}
        return command(**{replaced: build(given)}, **arguments)

    kept = list(inspect.signature(command, eval_str=True).parameters.values())
    place = next(i for i, p in enumerate(kept) if p.name == replaced)
    after = [*kept[:place], *new, *kept[place + 1 :]]
    after = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in after]
    with_options.__signature__ = inspect.Signature(after)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in after}
    return with_options


def field_parameters(
    settings_type: type, names: Iterable[str] | None = None
) -> list[inspect.Parameter]:
    """A keyword parameter for Typer, None if not given, for each option field or those in `names`.

    Fields for `--set` are left out unless named.
    """
    fields, hints = option_fields(settings_type), typing.get_type_hints(settings_type)
    parameters = []
    for name in names or [n for n, f in fields.items() if f.metadata["shown"] != "set"]:
        metadata, default = fields[name].metadata, fields[name].default
        kind, is_text = value_type(hints[name]), metadata["parse"] is not None
        declaration: Any = typer.Option(
            flag(settings_type, name).replace("--set ", "--"),
            help=metadata["help"] + ("" if is_text else default_text(default)),
            metavar=metadata["metavar"] or (None if is_text else METAVARS.get(kind)),
            rich_help_panel=metadata["panel"],
            hidden=metadata["shown"] == "help-all",
            show_default=False,  # Typer would show None, which stands for "not given"
        )
        repeatable = _item(kind) in (str, Path)
        typed: Any = bool if kind is bool else list[str] if repeatable else str
        if default is MISSING:
            parameters.append(keyword(name, Annotated[typed, declaration], inspect.Parameter.empty))
        else:
            parameters.append(keyword(name, Annotated[typed | None, declaration]))
    return parameters


def keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """A keyword-only parameter."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def read_values(settings_type: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Texts of the command line as values of the fields' types.

    A text that does not fit stays a text: the check of the fields then names it beside others.
    """
    bounded = typing.get_type_hints(settings_type, include_extras=True)
    plain, values = typing.get_type_hints(settings_type), {}
    for name, text in given.items():
        spelled, kind = flag(settings_type, name), value_type(bounded[name])
        parse = settings_type.__dataclass_fields__[name].metadata.get("parse")  # type: ignore[attr-defined]
        if parse is not None:
            values[name] = parse(text, spelled)
        elif isinstance(text, list):
            values[name] = tuple(map(_item(kind), text))
        elif _item(kind):
            values[name] = number_list(text, spelled, _item(kind))
        else:
            values[name] = text
            with suppress(msgspec.ValidationError):
                values[name] = msgspec.convert(text, value_type(plain[name]), strict=False)
    return values


def default_text(default: Any) -> str:
    """The default of an option as `--help` shows it; "" for None and for an empty list."""
    if default is None or default is MISSING or default == ():
        return ""
    if isinstance(default, bool):
        default = "yes" if default else "no"
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    return f" [dim](default: {default})[/]"


def _item(kind: Any) -> Any:
    """The type of the items of a tuple; None for another type."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None
