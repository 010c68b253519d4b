"""Options that commands share, those made of a settings dataclass, and those of a compression."""

import difflib
import inspect
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from grasp_deploy.cli.console import stdout
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.compress_options import COST_OF_BUDGET, SIZES, Share
from grasp_deploy.config.option import (
    field_problems,
    flag,
    number_list,
    option_fields,
    read_value,
    value_type,
)
from grasp_deploy.config.rules import BUDGETS, DEPLOYMENT
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import read_json

Command = Callable[..., Any]
METAVARS: dict[Any, str] = {int: "<int>", float: "<float>"}
STUDY_FIELDS = {
    name: f for name, f in option_fields(CompressConfig).items() if f.metadata["shown"] == "set"
}

COUNTING = (*DEPLOYMENT, "batch", "cached_tokens", "cost")

running_option = partial(typer.Option, rich_help_panel="Running")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")]
OutputUnlessDry = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder to write; not needed by --dry-run.")
]
RecordOutput = Annotated[
    Path | None, typer.Option("--output", "-o", help="JSON file to write the record to.")
]
Overwrite = Annotated[bool, running_option("--overwrite", help="Replace the output.")]
ShardSize = Annotated[str, running_option("--shard-size", help="Largest weight file, such as 4GB.")]
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
        if problems := field_problems(settings):
            raise InputError("; ".join(problems.values()))
        return settings

    parameters = field_parameters(settings_type)
    return lambda command: with_parameters(command, "settings", parameters, build)


def takes_fields(
    replaced: str, names: Sequence[str], *, defaults: bool = True, **helps: str
) -> Callable[[Command], Command]:
    """Give a command the options `names` of a compression, as a dictionary in `replaced`.

    `helps` are the texts of those that mean something else here.
    """
    parameters = field_parameters(CompressConfig, names, defaults=defaults)
    for name, parameter in zip(names, parameters, strict=True):
        declaration = parameter.annotation.__metadata__[0]
        declaration.help = helps.get(name, declaration.help)
    build = partial(read_values, CompressConfig)
    return lambda command: with_parameters(command, replaced, parameters, build)


def takes_config(command: Command, without: Sequence[str] = ()) -> Command:
    """Give a command with a parameter `given` the options of a compression, for `config_of`.

    Those in `without` mean nothing to it.
    """
    parameters = [
        keyword("model", Annotated[str | None, MODEL]),
        *(p for p in field_parameters(CompressConfig) if p.name not in without),
        keyword("config_file", Annotated[Path | None, CONFIG_FILE]),
        keyword("assignments", Annotated[list[str] | None, SET]),
        keyword("help_all", Annotated[bool | None, HELP_ALL]),
    ]
    return with_parameters(command, "given", parameters, dict)


def with_parameters(
    command: Command,
    replaced: str,
    parameters: Iterable[inspect.Parameter],
    build: Callable[[dict[str, Any]], Any],
) -> Command:
    """Give a command `parameters` in the place of `replaced`, which `build` makes of their values.

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
    settings_type: type, names: Iterable[str] | None = None, *, defaults: bool = True
) -> list[inspect.Parameter]:
    """Keyword parameters for Typer, None if not given, for each option field or those in `names`.

    Fields for `--set` are left out unless named. `--help` shows all that are named, and their
    values by default unless `defaults` is false.
    """
    fields, hints = option_fields(settings_type), typing.get_type_hints(settings_type)
    parameters = []
    for name in names or [n for n, f in fields.items() if f.metadata["shown"] != "set"]:
        metadata, default = fields[name].metadata, fields[name].default
        kind, is_text = value_type(hints[name]), metadata["parse"] is not None
        declaration: Any = typer.Option(
            flag(settings_type, name).replace("--set ", "--"),
            help=metadata["help"] + ("" if is_text or not defaults else default_text(default)),
            metavar=metadata["metavar"] or (None if is_text else METAVARS.get(kind)),
            rich_help_panel=metadata["panel"],
            hidden=names is None and metadata["shown"] == "help-all",
            show_default=False,  # Typer would show None, which stands for "not given"
        )
        repeatable = _item(kind) in (str, Path)
        typed: Any = bool if kind is bool else list[str] if repeatable else str
        absent = inspect.Parameter.empty if default is MISSING else None
        optional = typed if default is MISSING else typed | None
        parameters.append(keyword(name, Annotated[optional, declaration], absent))
    return parameters


def keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """A keyword-only parameter."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def read_values(settings_type: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert texts of the command line to the types of the fields.

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
                values[name] = read_value(text, value_type(plain[name]))
    return values


def default_text(default: Any) -> str:
    """The default of an option as `--help` shows it; "" for None and for an empty list."""
    if default in (None, MISSING, ()):
        return ""
    if isinstance(default, bool):
        default = "yes" if default else "no"
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    return f" [dim](default: {default})[/]"


def _item(kind: Any) -> Any:
    """The type of the items of a tuple type; None for any other type."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None


def config_of(given: Mapping[str, Any]) -> CompressConfig:
    """The config that options make: the command line wins over `--config`, that over defaults.

    Several shares in one --keep stand for a family.
    """
    given = dict(given)
    file, assignments = given.pop("config_file", None), given.pop("assignments", ())
    remedy = "name the compress_config.json that an earlier run wrote"
    stored = read_json(file, remedy) if file else {}
    stored.pop("times", None)  # measured on the machine of that run
    values = read_values(CompressConfig, given | _assigned_texts(assignments))
    before, now = (os.path.realpath(str(each.get("model"))) for each in (stored, values))
    if "model" in values and before != now:
        stored = {k: v for k, v in stored.items() if k not in ("base_model_id", "revision")}
    keep = values.get("keep")
    if isinstance(keep, str) and "," in keep:
        values["family"] = sorted(number_list(keep, "--keep", Share), reverse=True)
        values["keep"] = values["family"][-1]
    if asked := {name for name in BUDGETS if name in values}:
        # It replaces the stored budget but no bound beside one; and how that was counted, if only
        # one of the two counts in a way of its own.
        had = {name for name in SIZES if stored.get(name) is not None}
        counting = COUNTING if (had ^ asked) & COST_OF_BUDGET.keys() else ()
        bound = () if had or "max_loss" in asked else ("max_loss", "bound_step")
        replaced = (*SIZES, "family", *counting, *bound)
        stored = {key: value for key, value in stored.items() if key not in replaced}
    source = f"the config file {file}" if file else "the command line"
    return CompressConfig.from_dict(stored | values, source)


def _assigned_texts(assignments: Iterable[str]) -> dict[str, str]:
    """Texts of fields by name, from NAME=VALUE; the last wins. InputError for an unknown name."""
    texts = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InputError(f"--set {assignment} has no value: write it like --set rounds=3")
        if name not in STUDY_FIELDS:
            raise InputError(f"--set {assignment}: {_advice(name)}")
        texts[name] = {"yes": "true", "no": "false"}.get(value, value)
    return texts


def _advice(name: str) -> str:
    if name in option_fields(CompressConfig):
        return f"this is an option by itself: {flag(CompressConfig, name)}"
    close = difflib.get_close_matches(name, STUDY_FIELDS, 1)
    meant = f"did you mean {close[0].replace('_', '-')}? " if close else ""
    return f"unknown name; {meant}grasp-deploy compress --help-all lists them"


def _show_all(context: typer.Context, asked: bool | None) -> None:
    if not asked:
        return
    for parameter in context.command.params:
        parameter.hidden = False  # type: ignore[attr-defined]
    context.get_help()  # prints it
    table = Table.grid(padding=(0, 2))
    for name, f in STUDY_FIELDS.items():
        text = Text.from_markup(f.metadata["help"] + default_text(f.default))
        table.add_row(name.replace("_", "-"), text)
    title = "Studies: --set NAME=VALUE"
    stdout.print(Panel(table, title=title, title_align="left", border_style="dim"))
    raise typer.Exit


MODEL = typer.Argument(metavar="MODEL", help="Hub id or folder of a dense model.")
CONFIG_FILE = running_option(
    "--config", metavar="FILE", help="Options from compress_config.json of an earlier run."
)
SET = running_option(
    "--set",
    metavar="NAME=VALUE",
    help="Option for studies; --help-all lists them. May be repeated.",
)
HELP_ALL = typer.Option(
    "--help-all",
    help="Show all options, with those for --set, and exit.",
    is_eager=True,
    callback=_show_all,
)
