"""Problems worked digit by digit: the steps are right, and held-out problems are no others."""

from __future__ import annotations

import re
from itertools import islice

from benchmarks.study.arithmetic import problems, worked


def test_steps_by_hand() -> None:
    assert worked(347, "+", 85, 3) == "7+5+0:2/1,4+8+1:3/1,3+0+1:4/0;432"
    assert worked(85, "-", 9, 2) == "5-9-0:6/1,8-0-1:7/0;76"


def test_results_are_those_of_the_prompts() -> None:
    for problem in islice(problems(0, heldout=False), 300):
        terms = re.findall(r"[-+]?\d+", problem.prompt)
        assert sum(map(int, terms)) == int(problem.result)
        assert len(problem.result) == len(terms[0]) and problem.answer.endswith(problem.result)


def test_held_out_problems_are_no_others() -> None:
    sides = [{p.prompt for p in islice(problems(1, heldout=h), 400)} for h in (False, True)]
    assert not sides[0] & sides[1]
    assert {len(prompt) for prompt in sides[1]} == {6, 8}
