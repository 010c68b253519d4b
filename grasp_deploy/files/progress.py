"""The callback by which long work reports how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OnProgress = Callable[[dict[str, Any]], None]  # a row of metrics: stage, step, steps, ...
OnCount = Callable[[int, int], None]  # items done, items in all
