"""The log of lm-eval: kept off the terminal, and read for prompts that were shortened."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("lm_eval")


@contextmanager
def silent() -> Iterator[list[str]]:
    """Show nothing that lm-eval logs; yields its warnings of prompts that it shortened."""
    truncated: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "runcating" in record.getMessage():  # in the wording of all its models
                truncated.append(record.getMessage())

    collector, propagated = Collector(logging.WARNING), LOGGER.propagate
    LOGGER.addHandler(collector)
    LOGGER.propagate = False
    try:
        yield truncated
    finally:
        LOGGER.removeHandler(collector)
        LOGGER.propagate = propagated
