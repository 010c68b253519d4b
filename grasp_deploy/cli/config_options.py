"""Turns the fields of a config into options of a Typer command: each is written down once."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from grasp_deploy.config.compress_config import CompressConfig, read_config_file
from grasp_deploy.config.rules import BUDGETS, flag

OPTIONS = [f for f in fields(CompressConfig) if f.metadata]


def takes_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes `config` an option for each field of it, and `--config FILE`.

    What is given on the command line wins over the file, and the file over the defaults.
    """

    @wraps(command)
    def with_options(**arguments: Any) -> Any:
        given = {f.name: arguments.pop(f.name) for f in OPTIONS}
        values = {name: value for name, value in given.items() if value not in (None, [])}
        file, model = arguments.pop("config_file"), arguments.pop("model")
        stored = read_config_file(file) if file else {}
        values |= {"model": model} if model else {}
        source = f"the config file {file}" if file else "the command line"
        return command(config=CompressConfig.from_dict(_merge(stored, values), source), **arguments)

    signature = inspect.signature(command, eval_str=True)
    kept = [p for p in signature.parameters.values() if p.name != "config"]
    before = [_parameter("model", Annotated[str | None, _MODEL], None)]
    after = [_parameter("config_file", Annotated[Path | None, _CONFIG_FILE], None)]
    with_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*before, *map(_option, OPTIONS), *kept, *after]
    )
    with_options.__annotations__ = {p.name: p.annotation for p in [*before, *kept, *after]}
    return with_options


_MODEL = typer.Argument(help="Hub id or folder of a dense model.", show_default=False)
_CONFIG_FILE = typer.Option(
    "--config",
    help="Take options from a file that an earlier run wrote.",
    rich_help_panel="Running",
    show_default=False,
)


def _merge(stored: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Given options over stored ones; a budget that is given replaces the stored kind of budget."""
    if any(name in given for name in BUDGETS):
        stored = {key: value for key, value in stored.items() if key not in BUDGETS}
    return {**stored, **given}


def _option(f: Any) -> inspect.Parameter:
    kind = _plain_type(typing.get_type_hints(CompressConfig)[f.name])
    negation = f"/--no-{flag(f.name)[2:]}" if f.default is True else ""
    declaration = typer.Option(
        flag(f.name) + negation,
        help=f.metadata["help"] + _default_text(f.default),
        rich_help_panel=f.metadata["panel"],
        show_default=False,  # Typer would show that all are None: what is not given comes later
    )
    return _parameter(f.name, Annotated[kind | None, declaration], None)


def _default_text(default: Any) -> str:
    words = {None: "", True: " [dim](default: yes)[/]", False: " [dim](default: no)[/]"}
    if default is None or isinstance(default, bool):
        return words[default]
    default = " ".join(default) if isinstance(default, tuple) else default
    return f" [dim](default: {str(default).lower()})[/]"


def _plain_type(hint: Any) -> Any:
    """The type that Typer parses: without None; choices as text, which the config checks."""
    if typing.get_origin(hint) is types.UnionType:
        return next(t for t in typing.get_args(hint) if t is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        return list[str]
    return str if typing.get_origin(hint) is Literal else hint


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, annotation=annotation, default=default)
