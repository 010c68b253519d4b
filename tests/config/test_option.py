"""Option fields: their spelling, their bounds in words, and lists of numbers."""

from dataclasses import dataclass
from typing import Annotated

import pytest
from msgspec import Meta

from grasp_deploy.config.option import Count, assigned, flag, number_list, option, study
from grasp_deploy.errors import InputError


@dataclass(frozen=True)
class Settings:
    name: str = "plain"
    batches: tuple[Count, ...] = option("Requests at a time.", (1, 2), flag="--batch")
    new_tokens: Count | None = option("Tokens of an answer.", None)
    step_size: float = study("Size of a step.", 1.0)


def test_spelling() -> None:
    names = ("name", "batches", "new_tokens", "step_size")
    expected = ["--name", "--batch", "--new-tokens", "--set step-size"]
    assert [flag(Settings, name) for name in names] == expected
    settings = Settings(new_tokens=4)
    given = [assigned(settings, name) for name in ("new_tokens", "step_size")]
    assert given == ["--new-tokens 4", "--set step-size=1.0"]


def test_lists_of_numbers() -> None:
    assert number_list("1, 2,40", "--batch") == (1, 2, 40)
    assert number_list("0.5,2", "--rate", Annotated[float, Meta(gt=0, le=9)]) == (0.5, 2.0)
    for text in ("1,,2", "0", "x", "1.5", "9" * 5000):
        with pytest.raises(InputError, match=r"--batch .* is not a whole number from 1"):
            number_list(text, "--batch")
    with pytest.raises(InputError, match="--batch '1,2,1' names a number twice"):
        number_list("1,2,1", "--batch")
