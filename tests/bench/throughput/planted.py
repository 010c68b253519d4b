"""What the tests of both throughput engines do with a child in which sleeps can be planted."""

from __future__ import annotations

import os
import time
from pathlib import Path

from grasp_deploy.engine.child import Ask

ROOT = Path(__file__).parents[3]
BATCH, PROMPT_TOKENS, NEW_TOKENS = 2, 24, 8
NOTHING = {"prefill_seconds": 0.0, "decode_seconds": 0.0}


def measured(
    ask: Ask, prefill_seconds: float = 0.0, decode_seconds: float = 0.0
) -> dict[str, float]:
    """The fastest of three samples with these sleeps planted, so that other work counts little."""
    ask(
        {
            "do": "plant",
            "planted": {
                **NOTHING,
                "prefill_seconds": prefill_seconds,
                "decode_seconds": decode_seconds,
            },
        }
    )
    return min((sample(ask, seed) for seed in range(3)), key=lambda sample: sample["seconds"])


def sample(ask: Ask, seed: int = 0) -> dict[str, float]:
    lengths = {"prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS}
    return ask({"do": "measure", "batch": BATCH, **lengths, "seed": seed})


def assert_sleeps_show(ask: Ask) -> None:
    """A sleep in the prefill shows in TTFT alone, and one in every decode step in TPOT alone."""
    plain = measured(ask)
    slow_prefill = measured(ask, prefill_seconds=2.0)
    slow_decode = measured(ask, decode_seconds=0.3)
    # Other work on the machine may add half of a sleep, and never takes any of it away.
    assert 2.0 <= slow_prefill["ttft_seconds"] < plain["ttft_seconds"] + 3.0
    assert slow_prefill["tpot_seconds"] < plain["tpot_seconds"] + 0.15
    assert 0.3 <= slow_decode["tpot_seconds"] < plain["tpot_seconds"] + 0.45
    assert slow_decode["ttft_seconds"] < plain["ttft_seconds"] + 1.0
    for some in (plain, slow_prefill, slow_decode):
        whole = some["ttft_seconds"] + (NEW_TOKENS - 1) * some["tpot_seconds"]
        assert abs(some["seconds"] - whole) < 1e-3, "requests go in step"


def assert_idle_afterwards(ask: Ask) -> None:
    """A child leaves the processor to the others while nothing is asked of it."""
    process = ask({"do": "plant", "planted": NOTHING})["process"]
    sample(ask)
    assert _idle_share(process) < 0.3, "a spinning thread takes 1"


def _idle_share(process: int, seconds: float = 1.5) -> float:
    """The share of a core that a process and its threads use while nothing is asked of it."""
    time.sleep(0.3)  # OpenMP's threads spin for a while after their work
    before = _cpu_seconds(process)
    time.sleep(seconds)
    return (_cpu_seconds(process) - before) / seconds


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
