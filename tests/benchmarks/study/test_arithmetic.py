"""Problems worked digit by digit: the steps are right, and held-out problems are no others."""

from __future__ import annotations

import re
from itertools import islice

from benchmarks.study.arithmetic import problems, result_of, steps


def test_steps_by_hand() -> None:
    assert steps(47, "+", 38) == ("7+8+0:5/1,4+3+1:8/0;85", 85)
    assert steps(85, "-", 9) == ("5-9-0:6/1,8-0-1:7/0;76", 76)


def test_results_are_those_of_the_prompts() -> None:
    drawn = list(islice(problems(0, heldout=False), 300))
    for problem in drawn:
        terms = [int(term) for term in re.findall(r"[-+]?\d+", problem.prompt)]
        assert sum(terms) == int(problem.result)
        assert problem.answer.count(";") == len(terms) - 1
    assert {problem.prompt.count("+") + problem.prompt.count("-") for problem in drawn} == {1, 2, 3}
    assert result_of("an answer without a result") == "an answer without a result"


def test_held_out_problems_are_a_tenth_and_no_others() -> None:
    sides = [{p.prompt for p in islice(problems(1, heldout=h), 400)} for h in (False, True)]
    assert not sides[0] & sides[1]
    assert list(islice(problems(1, heldout=True), 3)) == list(islice(problems(1, heldout=True), 3))
