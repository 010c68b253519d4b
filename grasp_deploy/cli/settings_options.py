"""Command-line options made from the fields of a settings dataclass: each is written once."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from grasp_deploy.config.option import check_fields, flag, number_list, option_fields, value_type

Command = Callable[..., Any]


def takes_settings(settings_type: type) -> Callable[[Command], Command]:
    """Give a command with a parameter `settings` an option for each option of the dataclass.

    Values that break a type or a bound end in one InputError that names them all.
    """

    def build(given: dict[str, Any]) -> Any:
        settings = settings_type(**_parsed(settings_type, given))
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
    options = option_fields(settings_type)
    if names is None:
        names = [name for name, f in options.items() if f.metadata["shown"] != "set"]
    return [_parameter(settings_type, options[name]) for name in names]


def keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """A keyword-only parameter."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def default_text(default: Any) -> str:
    """The default of an option as `--help` shows it; "" for None and for an empty list."""
    if default is None or default is MISSING or default == ():
        return ""
    if isinstance(default, bool):
        default = "yes" if default else "no"
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    return f" [dim](default: {default})[/]"


def _parameter(settings_type: type, field: Field[Any]) -> inspect.Parameter:
    hint = typing.get_type_hints(settings_type, include_extras=True)[field.name]
    metadata = field.metadata
    declaration: Any = typer.Option(
        flag(settings_type, field.name).replace("--set ", "--"),
        help=metadata["help"] + ("" if metadata["parse"] else default_text(field.default)),
        metavar=metadata["metavar"],
        rich_help_panel=metadata["panel"],
        hidden=metadata["shown"] == "help-all",
        show_default=False,  # Typer would show None, which stands for "not given"
    )
    kind = str if metadata["parse"] else _typer_type(value_type(hint))
    if field.default is MISSING:
        return keyword(field.name, Annotated[kind, declaration], inspect.Parameter.empty)
    return keyword(field.name, Annotated[kind | None, declaration])


def _typer_type(kind: Any) -> Any:
    """The type that Typer reads: text for choices and for lists of numbers, without bounds."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        repeatable = arguments[0] in (str, Path)
        return list[arguments[0]] if repeatable else str  # type: ignore[valid-type]
    if origin is Annotated:
        return arguments[0]
    return str if origin is Literal else kind


def _parsed(settings_type: type, given: dict[str, Any]) -> dict[str, Any]:
    """The values of fields whose options are text or repeatable; the others as they are.

    Typer's own parsers would phrase an InputError differently.
    """
    hints = typing.get_type_hints(settings_type, include_extras=True)
    values = dict(given)
    for name, value in given.items():
        kind, parse = value_type(hints[name]), option_fields(settings_type)[name].metadata["parse"]
        if parse is not None:
            values[name] = parse(value, flag(settings_type, name))
        elif isinstance(value, list):
            values[name] = tuple(value)
        elif typing.get_origin(kind) is tuple:
            item = typing.get_args(kind)[0]
            values[name] = number_list(value, flag(settings_type, name), item)
    return values
