"""Options: fields of settings dataclasses with their help, spelling and bounds."""

import dataclasses
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, inspect

from grasp_deploy.errors import InputError

LARGEST_NUMBER = 10**12
LARGEST_SEED = 2**32 - 1
Count = Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)]
CountOrZero = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
Length = Annotated[int, Meta(ge=2, le=LARGEST_NUMBER)]
Seed = Annotated[int, Meta(ge=0, le=LARGEST_SEED)]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
HubId = Annotated[str, Meta(pattern=r"\A[\w.-]+/[\w.-]+\Z")]

DEVICE_HELP = "auto, cpu, cuda, cuda:1, ..."
DTYPE_HELP = (
    "auto, float32, bfloat16 or float16; auto: that of the weights, on a CPU float32 unless its "
    "bfloat16 is faster."
)
BENCH_DTYPE_HELP = "auto, float32, bfloat16 or float16; auto: that of the weights."
BENCH_SEED_HELP = "Seed of random tokens and random weights."
REPETITIONS_HELP = "Measurements of each point."
ENFORCE_EAGER_HELP = "Run vLLM without compiled graphs."
SEQUENCE_LENGTH_HELP = "Tokens in a sequence. Default: 2048, or the model's limit if lower."


def option(
    help_text: str,
    default: Any = dataclasses.MISSING,
    panel: str | None = None,
    *,
    flag: str | None = None,
    metavar: str | None = None,
    shown: Literal["help", "help-all", "set"] = "help",
    parse: Callable[[str, str], Any] | None = None,
) -> Any:
    """A dataclass field that is a command-line option too; its type states the bounds.

    `panel` groups options in `--help`. `flag` is the spelling, by default the field's name.
    `metavar` stands for the value in help. `shown` lists the option in `--help`, only in
    `--help-all`, or there as a name for `--set NAME=VALUE`. `parse` reads the text of the command
    line; it gets the flag for errors.
    """
    metadata: dict[str, Any] = {"help": help_text, "panel": panel, "flag": flag, "metavar": metavar}
    metadata |= {"shown": shown, "parse": parse}
    return dataclasses.field(default=default, metadata=metadata)


study = partial(option, shown="set")  # an option for studies, given by `--set NAME=VALUE`


def option_fields(settings: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields, by name, of a settings dataclass (or an instance) that are options."""
    return {f.name: f for f in dataclasses.fields(settings) if "shown" in f.metadata}


def flag(settings: Any, name: str) -> str:
    """The spelling of a field on the command line: `--keep`, or `--set rounds`."""
    metadata, dashed = settings.__dataclass_fields__[name].metadata, name.replace("_", "-")
    if metadata.get("shown") == "set":
        return f"--set {dashed}"
    return metadata.get("flag") or f"--{dashed}"


def assigned(settings: Any, name: str, value: Any = None) -> str:
    """A field with its value as on the command line: `--keep 0.6`, or `--set rounds=3`."""
    spelled = flag(settings, name)
    value = getattr(settings, name) if value is None else value
    return f"{spelled}{'=' if spelled.startswith('--set ') else ' '}{value}"


def given_words(settings: Any) -> list[str]:
    """The options that differ from their defaults, as words of a command line."""
    words = []
    for name, option_field in option_fields(settings).items():
        value = getattr(settings, name)
        if value != option_field.default:
            for one in value if isinstance(value, tuple) else (value,):
                words += assigned(settings, name, one).removesuffix(" True").split(" ", 1)
    return words


def field_problems(settings: Any) -> dict[str, str]:
    """Convert fields to their types; returns a sentence for each that breaks its type or bounds."""
    problems = {}
    for name, hint in typing.get_type_hints(type(settings), include_extras=True).items():
        value = _plain(getattr(settings, name))
        try:
            object.__setattr__(settings, name, msgspec.convert(value, hint))
        except msgspec.ValidationError:
            text = f"{value:.10g}" if isinstance(value, float) else repr(value)
            given = assigned(settings, name, text)
            problems[name] = f"{given} is not allowed: give {describe(hint)}"
    return problems


def _plain(value: Any) -> Any:
    """A value with Python's types in place of NumPy's, which msgspec refuses."""
    if type(value).__module__ == "numpy":
        return value.tolist()
    return [*map(_plain, value)] if isinstance(value, tuple | list) else value


def describe(hint: Any) -> str:
    """The values of a type in words: "a whole number from 1 up to 1e+12", "one of ffn, kv"."""
    kind = inspect.type_info(value_type(hint))
    if isinstance(kind, inspect.LiteralType):
        return "one of " + ", ".join(typing.get_args(value_type(hint)))
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
        bounds = {"above": kind.gt, "from": kind.ge, "up to": kind.le}
        stated = (f" {word} {bound:g}" for word, bound in bounds.items() if bound is not None)
        return noun + "".join(stated)
    if isinstance(kind, inspect.StrType):
        return "a hub id, ORG/NAME" if kind.pattern else "text"
    if isinstance(kind, inspect.VarTupleType):
        return f"a list, each {describe(typing.get_args(value_type(hint))[0])}"
    return "true or false" if isinstance(kind, inspect.BoolType) else "what an earlier run wrote"


def value_type(hint: Any) -> Any:
    """A field's type without None."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next(t for t in typing.get_args(hint) if t is not types.NoneType)
    return hint


def read_value(text: str, kind: Any) -> Any:
    """The value of a type in a text of the command line; ValidationError if that holds none.

    Numbers may be written as in Python, such as `.6`, which is no number in JSON.
    """
    info: Any = inspect.type_info(kind)
    value: Any = text
    with suppress(ValueError):
        if isinstance(info, inspect.IntType | inspect.FloatType):
            value = int(text) if isinstance(info, inspect.IntType) else float(text)
    return msgspec.convert(value, kind, strict=False)


def number_list(text: str, flag: str, kind: Any = Count) -> tuple[Any, ...]:
    """The numbers in `1,2,4`; InputError if one of them is not of `kind`, or given twice."""
    numbers = []
    for part in text.split(","):
        try:
            numbers.append(read_value(part.strip(), kind))
        except msgspec.ValidationError:
            raise InputError(
                f"{flag} {text!r:.60}: {part.strip()!r:.40} is not {describe(kind)}; separate "
                "numbers by commas"
            ) from None
    if len(set(numbers)) < len(numbers):
        raise InputError(f"{flag} {text!r} names a number twice: name each once")
    return tuple(numbers)
