"""A budget in time: what was asked, as a limit on the measured prices of units."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.compression.latency_table import LatencyTable, read_table
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import assigned
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.latency import LinearTime
from grasp_deploy.stats.noise import FASTER, SLOWER, differences

CLOSE_ENOUGH = 0.03  # of the seconds asked for


@dataclass(frozen=True)
class Correction:
    """What a measurement makes of a budget: one with another limit, or why the first one stays.

    Both are None where the measured time is close enough to what was asked for, or noise.
    """

    budget: Budget | None = None
    left_out: str | None = None


@dataclass(frozen=True)
class TimeBudget:
    """The time of a dense model in one phase, its price, and the seconds that were asked for.

    Costs are nanoseconds. What is not among them, the sum of all costs being `total_cost`, is kept
    whatever the mask.
    """

    config: CompressConfig
    table: LatencyTable
    price: LinearTime

    @property
    def asked_seconds(self) -> float | None:
        """Seconds of a decode step or of a prefill; None where `--keep` is the budget."""
        config = self.config
        if config.speedup is not None:
            return self.price.dense_seconds / config.speedup
        if config.tokens_per_second is not None:
            assert config.batch is not None, "checked with the config"
            return config.batch / config.tokens_per_second
        return config.ttft_seconds

    def seconds(self, kept_cost: float, total_cost: float) -> float:
        """Predicted time of a mask that keeps so much of all costs."""
        return self.price.dense_seconds - (total_cost - kept_cost) / 1e9

    def limit(self, seconds: float, total_cost: float) -> float:
        """The kept cost whose predicted time is so many seconds."""
        return total_cost - 1e9 * (self.price.dense_seconds - seconds)

    def asked_limit(self, total_cost: float) -> float:
        """The limit on costs; InputError for a time that the dense model already has."""
        asked = self.asked_seconds
        assert asked is not None, "the budget is a time"
        if asked >= self.price.dense_seconds:
            raise InputError(
                f"{self._as_asked} asks for {_milliseconds(asked)}, and the dense model takes "
                f"{_milliseconds(self.price.dense_seconds)}: ask for a faster one, or serve "
                "the model as it is"
            )
        return self.limit(asked, total_cost)

    def correction(
        self, budget: Budget, predicted: float, repetitions: Sequence[float]
    ) -> Correction:
        """Move the limit by predicted over measured seconds of a mask under the budget.

        `repetitions` are the measured seconds, whose median counts. A limit that no mask between
        the least of every layer and the dense model meets is no correction, but left out.
        """
        asked, total = self.asked_seconds, budget.total_cost
        assert asked is not None, "the budget is a time"
        measured = statistics.median(repetitions)
        (difference,) = differences([(repetitions, [asked] * len(repetitions))])
        if abs(measured / asked - 1) <= CLOSE_ENOUGH or difference.outcome not in (FASTER, SLOWER):
            return Correction()
        if measured >= self.price.dense_seconds:
            return Correction(left_out="the mask was measured slower than the dense model")
        limit = self.limit(asked * predicted / measured, total)
        if limit < budget.smallest_limit:
            return Correction(
                left_out="going by the measured time, what was asked for cannot be reached"
            )
        if limit >= total:
            return Correction(left_out="going by the measured time, nothing would have to go")
        return Correction(budget=replace(budget, limit=limit))

    def beyond_reach(self, smallest_cost: float, total_cost: float) -> InputError:
        """The error for a time that even the least of every layer takes longer than."""
        dense, least = self.price.dense_seconds, self.seconds(smallest_cost, total_cost)
        fixed = self.seconds(0, total_cost)
        return InputError(
            f"{self._as_asked} is beyond reach: of the dense model's {_milliseconds(dense)}, "
            f"{_milliseconds(fixed)} are neither FFN channels nor KV groups that may go, and "
            f"{_milliseconds(least - fixed)} are the least of them that every layer keeps: the "
            f"fastest possible is {self._as_option(least)}"
        )

    @property
    def _as_asked(self) -> str:
        names = ("speedup", "tokens_per_second", "ttft_seconds")
        return assigned(self.config, next(n for n in names if getattr(self.config, n) is not None))

    def _as_option(self, seconds: float) -> str:
        """A time written as the option that asks for it, rounded to what is easier to reach."""
        if self.config.ttft_seconds is not None:
            return f"--ttft {math.ceil(1e6 * seconds) / 1e6:g}"
        if self.config.speedup is not None:
            speedup = math.floor(1000 * self.price.dense_seconds / seconds) / 1000
            return f"--speedup {speedup:g} ({_milliseconds(seconds)})"
        assert self.config.batch is not None, "checked with the config"
        return f"--tokens-per-second {math.floor(1000 * self.config.batch / seconds) / 1000:.10g}"


def time_budget(config: CompressConfig, shape: ModelShape) -> TimeBudget | None:
    """The table and price behind `--cost latency`; None for another cost."""
    if config.cost_model != "latency":
        return None
    assert config.table is not None and config.batch and config.context, "checked with the config"
    table = read_table(Path(config.table), shape, config.batch, config.context)
    price = table.price(config.batch, config.context, phase_of(config))
    if not price.has_price:
        raise InputError(
            f"the times in {config.table} make no price (of {_milliseconds(price.dense_seconds)} "
            f"{_milliseconds(price.fixed_seconds)} would be fixed): measure it again on a quieter "
            "machine, with more --repetitions"
        )
    return TimeBudget(config, table, price)


def phase_of(config: CompressConfig) -> str:
    """The phase whose time counts."""
    return "decode" if config.ttft_seconds is None else "prefill"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
