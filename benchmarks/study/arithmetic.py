"""Sums and differences worked digit by digit: a task that takes steps.

    prompt  347+085?
    answer  7+5+0:2/1,4+8+1:3/1,3+0+1:4/0;432

A step is a digit of each number and the carry; behind the colon stand the digit that they give and
the next carry. The result is what stands behind the last semicolon.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

DIGITS = (2, 3)  # of both numbers and of the result
HELDOUT_ONE_IN = 10


@dataclass(frozen=True)
class Problem:
    """A prompt, and the answer with all steps."""

    prompt: str
    answer: str

    @property
    def result(self) -> str:
        """The result alone."""
        return result_of(self.answer)

    @property
    def is_heldout(self) -> bool:
        """True for one problem in ten, by the prompt alone."""
        digest = hashlib.sha256(self.prompt.encode()).digest()
        return int.from_bytes(digest[:8], "big") % HELDOUT_ONE_IN == 0


def problems(seed: int, *, heldout: bool) -> Iterator[Problem]:
    """Endless random problems, all held out or none; no result has more digits or is negative."""
    draw = random.Random(seed)
    while True:
        digits, sign = draw.choice(DIGITS), draw.choice("+-")
        first = draw.randrange(10**digits)
        second = draw.randint(0, 10**digits - 1 - first if sign == "+" else first)
        prompt = f"{first:0{digits}}{sign}{second:0{digits}}?"
        problem = Problem(prompt, worked(first, sign, second, digits))
        if problem.is_heldout == heldout:
            yield problem


def worked(first: int, sign: str, second: int, digits: int) -> str:
    """The written steps of a sum or a difference, lowest digit first, and its result."""
    result = first + second if sign == "+" else first - second
    carry, written = 0, []
    for place in range(digits):
        a, b = first // 10**place % 10, second // 10**place % 10
        digit = a + b + carry if sign == "+" else a - b - carry
        after = int(not 0 <= digit <= 9)
        written.append(f"{a}{sign}{b}{sign}{carry}:{digit % 10}/{after}")
        carry = after
    return f"{','.join(written)};{result:0{digits}}"


def result_of(answer: str) -> str:
    """What stands behind the last semicolon."""
    return answer.rpartition(";")[2].strip()
