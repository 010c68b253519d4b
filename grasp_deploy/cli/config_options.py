"""Options of the commands that compress: config fields, `--set`, `--config`, `--help-all`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from grasp_deploy.cli.console import stdout
from grasp_deploy.cli.options import (
    Command,
    default_text,
    field_parameters,
    keyword,
    read_values,
    running_option,
    with_parameters,
)
from grasp_deploy.config.compress_config import CompressConfig, read_config_file
from grasp_deploy.config.goal import Share
from grasp_deploy.config.option import flag, number_list, option_fields
from grasp_deploy.config.rules import BUDGETS
from grasp_deploy.errors import InputError

STUDY_FIELDS = {
    name: f for name, f in option_fields(CompressConfig).items() if f.metadata["shown"] == "set"
}


def takes_config(command: Command) -> Command:
    """Give a command with a parameter `config` the options of a compression.

    Options of the command line win over the file of `--config`, and the file over the defaults.
    """
    parameters = [
        keyword("model", Annotated[str | None, MODEL]),
        *field_parameters(CompressConfig),
        keyword("config_file", Annotated[Path | None, CONFIG_FILE]),
        keyword("assignments", Annotated[list[str] | None, SET]),
        keyword("help_all", Annotated[bool | None, HELP_ALL]),
    ]
    return with_parameters(command, "config", parameters, _config)


def _config(given: dict[str, Any]) -> CompressConfig:
    file, assignments = given.pop("config_file", None), given.pop("assignments", ())
    stored = read_config_file(file) if file else {}
    stored.pop("times", None)  # of the machine of that run
    values = read_values(CompressConfig, given | _assigned_texts(assignments))
    values |= _several_keeps(values.get("keep"))
    if any(name in values for name in BUDGETS):  # a budget replaces the stored kind of budget
        replaced = (*BUDGETS, "family")
        stored = {key: value for key, value in stored.items() if key not in replaced}
    source = f"the config file {file}" if file else "the command line"
    return CompressConfig.from_dict(stored | values, source)


def _several_keeps(keep: Any) -> dict[str, Any]:
    """The fields that stand for several shares in one text; none for one share."""
    if not isinstance(keep, str) or "," not in keep:
        return {}
    family = sorted(number_list(keep, "--keep", Share), reverse=True)
    return {"keep": family[-1], "family": tuple(family)}


def _assigned_texts(assignments: Iterable[str]) -> dict[str, str]:
    """The fields in texts NAME=VALUE; a later one wins. InputError for an unknown name."""
    texts = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InputError(f"--set {assignment} has no value: write it like --set rounds=3")
        if name not in STUDY_FIELDS:
            raise InputError(f"--set {assignment}: {_advice(name)}")
        is_bool = isinstance(STUDY_FIELDS[name].default, bool)
        texts[name] = {"yes": "true", "no": "false"}.get(value, value) if is_bool else value
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
