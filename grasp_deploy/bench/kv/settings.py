"""The options of `bench kv`."""

from __future__ import annotations

from dataclasses import dataclass

from grasp_deploy.config.option import BENCH_DTYPE_HELP, BENCH_SEED_HELP, Count, Seed, option
from grasp_deploy.files.sizes import parse_bytes


@dataclass(frozen=True)
class KvSettings:
    """A memory for weights and KV cache together, and the tokens of a full sequence."""

    memory_bytes: int = option(
        "Memory for weights and KV cache together, such as 16GiB. Default: 20GiB.",
        20 * 2**30,
        flag="--memory",
        parse=parse_bytes,
    )
    context_tokens: Count | None = option(
        "Tokens of a full sequence. Default: 2048, or the models' limit if lower.",
        None,
        flag="--context",
    )
    predict_only: bool = option("Predict without starting vLLM.", False)
    dtype: str = option(BENCH_DTYPE_HELP, "auto")  # recorded only: the models' shapes have it
    seed: Seed = option(BENCH_SEED_HELP, 0)
