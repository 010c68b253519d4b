"""Checks of times, on a machine that has other work to do."""

from __future__ import annotations

from collections.abc import Callable


def undisturbed(check: Callable[[], None], attempts: int = 6) -> None:
    """Make a check that measures times until it passes, at most so often.

    Other work spoils some attempts and not all of them; what is wrong with the code spoils all.
    """
    for _ in range(attempts - 1):
        try:
            return check()
        except AssertionError:
            continue
    check()
