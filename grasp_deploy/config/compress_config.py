"""The checked configuration of a compression, and its JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from grasp_deploy.config.compress_options import CompressOptions
from grasp_deploy.config.option import field_problems, flag
from grasp_deploy.config.rules import own_texts, rule_problems
from grasp_deploy.errors import InputError

OWN = "self"
RETIRED = {"kv_cost_factor": 1.0, "own_temperature": 1.0}  # with what left them without effect


def _named(value: Any) -> Any:
    """A path as text, which Python's callers may give; all else as it is."""
    return str(value) if isinstance(value, Path) else value


@dataclass(frozen=True)
class CompressConfig(CompressOptions):
    """All that decides a compressed model; InputError lists every problem that needs no model.

    Rules across options are checked once every option is right by itself. `calibration` gets the
    model's own text here, so that a recorded config names all texts.
    `family` are the falling budgets of the family that this is a member of, `keep` among them: the
    last unless it is given.
    """

    def __post_init__(self) -> None:
        texts = _named(self.calibration)
        texts = (texts,) if isinstance(texts, str) else texts
        object.__setattr__(self, "model", _named(self.model))
        if isinstance(texts, tuple | list):
            object.__setattr__(self, "calibration", type(texts)(map(_named, texts)))
        wrong = field_problems(self)
        if "keep" in wrong and isinstance(self.keep, int | float) and 2 <= self.keep <= 100:
            wrong["keep"] += f", such as {self.keep / 100:g} for {self.keep:g} %"
        if "calibration" not in wrong and not own_texts(self.calibration):
            object.__setattr__(self, "calibration", (*self.calibration, OWN))
        if self.keep is None and self.family and "family" not in wrong:
            object.__setattr__(self, "keep", self.family[-1])
        problems = list(wrong.values()) or rule_problems(self)
        if problems:
            raise InputError("; ".join(problems))

    def as_dict(self) -> dict[str, Any]:
        """The options as JSON holds them."""
        listed = {name: list(getattr(self, name)) for name in ("calibration", "family")}
        return asdict(self) | listed

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str) -> Self:
        """A config from parsed JSON; InputError names `source` and an unknown or missing key."""
        values = {k: v for k, v in values.items() if k not in RETIRED or v != RETIRED[k]}
        unknown = sorted(values.keys() - cls.__dataclass_fields__)
        if unknown:
            raise InputError(
                f"{source} has keys that this release does not know ({', '.join(unknown)}): "
                "make it again without them"
            )
        if "model" not in values:
            raise InputError(f"{source} names no model: give MODEL, a hub id or a folder")
        return cls(**values)


def changed_options(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The differences between two configs as JSON holds them, such as `--seed 0 -> 1`."""
    # A family is named by all its shares.
    first, second = (
        v | {"keep": v.get("family") or v.get("keep"), "family": None} for v in (before, now)
    )
    return [
        f"{flag(CompressConfig, name)} {_shown(first.get(name))} -> {_shown(second[name])}"
        for name in second
        if first.get(name) != second[name]
    ]


def _shown(value: Any) -> str:
    return "not given" if value is None else f"{value!s:.80}"
