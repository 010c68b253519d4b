"""Sums and differences of two to four numbers, worked digit by digit: a task that takes steps.

    prompt  47+38-09?
    answer  7+8+0:5/1,4+3+1:8/0;85 5-9-0:6/1,8-0-1:7/0;76

A step is a digit of each number and the carry; behind the colon stand the digit that they give and
the next carry. The result is what stands behind the last semicolon.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

DIGITS = 2  # of every number
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
    largest = 10**DIGITS - 1
    while True:
        result = draw.randint(0, largest)
        prompt, works = f"{result:0{DIGITS}}", []
        for _ in range(draw.randint(1, 3)):
            sign = draw.choice("+-")
            other = draw.randint(0, largest - result if sign == "+" else result)
            prompt += f"{sign}{other:0{DIGITS}}"
            work, result = steps(result, sign, other)
            works.append(work)
        problem = Problem(f"{prompt}?", " ".join(works))
        if problem.is_heldout == heldout:
            yield problem


def steps(first: int, sign: str, second: int) -> tuple[str, int]:
    """The written steps of one sum or difference, lowest digit first, and its result."""
    result = first + second if sign == "+" else first - second
    carry, written = 0, []
    for place in range(DIGITS):
        a, b = first // 10**place % 10, second // 10**place % 10
        digit = a + b + carry if sign == "+" else a - b - carry
        after = int(not 0 <= digit <= 9)
        written.append(f"{a}{sign}{b}{sign}{carry}:{digit % 10}/{after}")
        carry = after
    return f"{','.join(written)};{result:0{DIGITS}}", result


def result_of(answer: str) -> str:
    """What stands behind the last semicolon."""
    return answer.rpartition(";")[2].strip()
