"""A budget in time: what was asked, as a limit on the measured prices of units.

    time = fixed + ffn · (kept share of all FFN channels) + kv · (kept share of all KV groups)

`fixed` is what no pruning saves: embeddings, norms, the head, and the engine's own work.
"""

import math
from dataclasses import dataclass
from typing import Any

from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError


@dataclass(frozen=True)
class TimeBudget:
    """The time of a decode step of a dense model, and the parts of it that its units take.

    Costs of units are nanoseconds. Time that belongs to no unit is fixed: it stays whatever the
    mask.
    """

    config: CompressConfig
    dense_seconds: float
    ffn_seconds: float  # of all FFN channels together
    kv_seconds: float  # of all KV groups together

    @property
    def asked_seconds(self) -> float:
        """The seconds asked for; those of the dense model where `--keep` is the budget."""
        return self.dense_seconds / (self.config.speedup or 1)

    def record(self, kept_cost: float, total_cost: float) -> dict[str, Any]:
        """Times of the dense model, asked for, and predicted, as a plan states them."""
        return {
            "batch": self.config.batch,
            "context": self.config.context,
            "dense_seconds": self.dense_seconds,
            "asked_seconds": self.asked_seconds if self.config.speedup else None,
            "predicted_seconds": self.dense_seconds - (total_cost - kept_cost) / 1e9,
        }

    def as_option(self, prunable_seconds: float, seconds: float) -> str:
        """The option that asks for a time, as a speedup rounded down, with the fixed part."""
        speedup = math.floor(1000 * self.dense_seconds / seconds) / 1000
        fixed = milliseconds(self.dense_seconds - prunable_seconds)
        return f"--speedup {speedup:g} ({milliseconds(seconds)}, of which {fixed} are fixed)"


def time_budget(config: CompressConfig) -> TimeBudget | None:
    """The prices behind `--cost latency`, by the config's times; None for another cost.

    A kind of unit costs nothing if noise would make its price negative. InputError for a config
    without times, and if the prices of all units are 0 or exceed the whole time.
    """
    times = config.times
    if config.cost_model != "latency":
        return None
    if times is None or (times.batch, times.context) != (config.batch, config.context):
        raise InputError(
            f"no times were measured at batch {config.batch} and context {config.context}: use "
            "the command, or grasp_deploy.bench.times.with_times, which measure them"
        )
    dense = times.dense_seconds
    ffn, kv = (
        max(0.0, dense - fewer) / (1 - share) if share < 1 else 0.0
        for fewer, share in (
            (times.fewer_channels_seconds, times.channels_share),
            (times.fewer_groups_seconds, times.groups_share),
        )
    )
    if not 0 < ffn + kv < dense:
        raise no_price(dense, ffn + kv)
    return TimeBudget(config, dense, ffn, kv)


def no_price(dense_seconds: float, prunable_seconds: float) -> InputError:
    """The error for measured times of which no budget can be made."""
    whole, fixed = map(milliseconds, (dense_seconds, dense_seconds - prunable_seconds))
    return InputError(
        f"the measured times make no price (of {whole} {fixed} would be fixed): measure again, on "
        "a quieter machine"
    )


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
