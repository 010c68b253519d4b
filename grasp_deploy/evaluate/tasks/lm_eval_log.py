"""What lm-eval says in its log: heard where it matters, and otherwise left unsaid."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("lm_eval")


@contextmanager
def silent() -> Iterator[None]:
    """While it lasts, nothing that lm-eval logs is shown."""
    propagated, nowhere = LOGGER.propagate, logging.NullHandler()
    LOGGER.addHandler(nowhere)
    LOGGER.propagate = False
    try:
        yield
    finally:
        LOGGER.removeHandler(nowhere)
        LOGGER.propagate = propagated


@contextmanager
def count_truncated() -> Iterator[list[str]]:
    """Silence too, but its warnings of prompts that it shortened are collected."""
    truncated: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "runcating" in record.getMessage():  # all its models say so, in their own words
                truncated.append(record.getMessage())

    collector = Collector(logging.WARNING)
    LOGGER.addHandler(collector)
    try:
        with silent():
            yield truncated
    finally:
        LOGGER.removeHandler(collector)
